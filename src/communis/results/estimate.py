"""Means over a few seeds with their spread, and verdicts on differences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean, stdev

from communis.core.metrics import better

# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
QUANTILES = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
NORMAL = 1.960  # the quantile for any number of degrees of freedom
UNCLEAR = "cannot be told apart"
FEWEST = 3  # seeds of a verdict: the interval of two is so wide that hardly anything lies outside
TOO_FEW = "too few seeds"


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its spread (sample standard deviation; NaN for one seed). If any seed
    has no finite value, there is no mean: to drop it would flatter a method that diverges."""

    mean: float
    spread: float
    seeds: int
    diverged: int = 0  # seeds without a finite value

    @classmethod
    def of(cls, by_seed: Iterable[float]) -> Estimate:
        values = list(by_seed)
        diverged = sum(not math.isfinite(value) for value in values)
        if diverged or not values:
            return cls(math.nan, math.nan, len(values), diverged)
        spread = stdev(values) if len(values) > 1 else math.nan
        return cls(fmean(values), spread, len(values))

    @property
    def half_width(self) -> float:
        """Half the width of the 95 % confidence interval of the mean; NaN for one seed."""
        if self.seeds < 2:
            return math.nan
        quantile = QUANTILES[min(self.seeds - 1, len(QUANTILES)) - 1]
        return quantile * self.spread / math.sqrt(self.seeds)


def ranked(means: Mapping[str, Estimate], metric: str) -> list[str]:
    """Methods from best to worst, those without a mean last."""
    finite = [name for name, estimate in means.items() if math.isfinite(estimate.mean)]
    order = sorted(finite, key=lambda name: -better(metric) * means[name].mean)
    return order + [name for name in means if name not in finite]


def significance(difference: Estimate, metric: str) -> str:
    """The verdict that the paired differences to the best method allow."""
    if difference.diverged:
        return "diverged"
    if not difference.seeds:
        return "no seed in common"
    if difference.seeds < FEWEST:
        return TOO_FEW
    if abs(difference.mean) <= difference.half_width:
        return UNCLEAR
    return "worse than the best" if difference.mean * better(metric) < 0 else "better than the best"
