"""Many scores in a few numbers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean

from communis.exchange import Scored


def summary(scores: Iterable[Scored]) -> dict[str, float]:
    """Means over clients of what each scores with all its own modalities, as `split.metric`."""
    values: dict[str, list[float]] = defaultdict(list)
    for x in scores:
        if x.own and x.score.label < 0:
            values[f"{x.split}.{x.score.metric}"].append(x.score.value)
    return {key: fmean(found) for key, found in values.items()}


def weighted_mean(weighted: Sequence[tuple[float, int]]) -> float:
    """The mean of the finite values by their weights; NaN if there is none."""
    known = [(value, weight) for value, weight in weighted if math.isfinite(value)]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else math.nan
