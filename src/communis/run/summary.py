"""Means of scores over clients."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from communis.core.pooled import POOLED, Count, is_count, pooled_f1, sibling
from communis.exchange.messages import Scored


def summary(scores: Iterable[Scored]) -> dict[str, float]:
    """Returns the means over clients of the scores with all their own modalities, as
    `split.metric`, and the macro-F1 pooled over the windows of all clients."""
    values: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, list[Count]] = defaultdict(list)
    for scored in scores:
        score = scored.score
        if scored.own and score.label < 0:
            values[f"{scored.split}.{score.metric}"].append(score.value)
        elif scored.own and is_count(score.metric):
            count = Count(score.metric, score.label, score.value, score.support)
            counts[f"{scored.split}.{sibling(score.metric, POOLED)}"].append(count)
    means = {key: fmean(of_clients) for key, of_clients in values.items()}
    pooled = {key: pooled_f1(of_clients) for key, of_clients in counts.items()}
    return means | pooled


def weighted_mean(weighted: Sequence[tuple[float, int]]) -> float:
    """Returns the weighted mean of the finite values; NaN if there is none."""
    finite = [(value, weight) for value, weight in weighted if math.isfinite(value)]
    total = sum(weight for _, weight in finite)
    return sum(value * weight for value, weight in finite) / total if total else math.nan
