"""Means of scores over clients."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean

from communis.core.pooled import POOLED, Count, is_count, pooled_f1, sibling
from communis.exchange.messages import ScoreColumns, Scored


def summary(scores: Sequence[Scored]) -> dict[str, float]:
    """Returns the means over clients of the scores with all their own modalities, as
    `split.metric`, and the macro-F1 pooled over the windows of all clients."""
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    counts: dict[tuple[str, str], list[Count]] = defaultdict(list)
    rows = ScoreColumns.of(scores)
    columns = zip(
        rows.own, rows.split, rows.metric, rows.label, rows.value, rows.support, strict=True
    )
    for own, split, metric, label, value, support in columns:
        if own and label < 0:
            values[split, metric].append(value)
        elif own and is_count(metric):
            counts[split, metric].append(Count(metric, label, value, support))
    means = {f"{split}.{metric}": fmean(own) for (split, metric), own in values.items()}
    pooled: dict[str, list[Count]] = defaultdict(list)
    for (split, metric), found in counts.items():
        pooled[f"{split}.{sibling(metric, POOLED)}"] += found
    return means | {key: pooled_f1(found) for key, found in pooled.items()}


def weighted_mean(weighted: Sequence[tuple[float, int]]) -> float:
    """Returns the weighted mean of the finite values; NaN if there is none."""
    finite = [(value, weight) for value, weight in weighted if math.isfinite(value)]
    total = sum(weight for _, weight in finite)
    return sum(value * weight for value, weight in finite) / total if total else math.nan
