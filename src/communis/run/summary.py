"""Many scores in a few numbers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from communis.core.pooled import POOLED, Count, is_count, pooled_f1, sibling
from communis.exchange.messages import Scored


def summary(scores: Iterable[Scored]) -> dict[str, float]:
    """Means over clients of what each scores with all its own modalities, as `split.metric`; and
    the macro-F1 of all their windows together."""
    values: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, list[Count]] = defaultdict(list)
    for x in scores:
        score = x.score
        if x.own and score.label < 0:
            values[f"{x.split}.{score.metric}"].append(score.value)
        elif x.own and is_count(score.metric):
            count = Count(score.metric, score.label, score.value, score.support)
            counts[f"{x.split}.{sibling(score.metric, POOLED)}"].append(count)
    means = {key: fmean(found) for key, found in values.items()}
    return means | {key: pooled_f1(found) for key, found in counts.items()}


def weighted_mean(weighted: Sequence[tuple[float, int]]) -> float:
    """The mean of the finite values by their weights; NaN if there is none."""
    known = [(value, weight) for value, weight in weighted if math.isfinite(value)]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else math.nan
