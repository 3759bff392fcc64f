"""Rank correlation, and what is left of it once a third quantity is accounted for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Correlation:
    rho: float  # NaN where it is not defined: too few points, or one side does not vary
    p: float  # two-sided, for points that are independent of each other
    n: int  # points with finite values


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> Correlation:
    """Spearman's rank correlation; points with a NaN are left out."""
    first, second = _ranks(x, y)
    return _correlation(first, second, degrees=len(first) - 2)


def partial_spearman(x: npt.ArrayLike, y: npt.ArrayLike, given: npt.ArrayLike) -> Correlation:
    """Spearman's rank correlation of what the ranks of `given` do not explain linearly. A `given`
    that does not vary explains nothing."""
    first, second, known = _ranks(x, y, given)
    if n := len(known):
        known = known - known.mean()
        weights = known / (float(known @ known) or 1.0)
        first, second = (v - v.mean() - (v @ weights) * known for v in (first, second))
    return _correlation(first, second, degrees=n - 3)


def _ranks(*columns: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """(columns, n): average ranks of the points that are finite in all columns."""
    from scipy.stats import rankdata  # takes a second to import

    values = np.array([np.asarray(column, np.float64) for column in columns])
    values = values[:, np.isfinite(values).all(0)]
    ranks: npt.NDArray[np.float64] = rankdata(values, axis=1).astype(np.float64)
    return ranks


def _correlation(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], degrees: int
) -> Correlation:
    """Pearson's correlation with its t-test."""
    from scipy.stats import t

    n = len(x)
    x, y = (v - v.mean() if n else v for v in (x, y))
    # Ranks vary by half a unit or not at all; what is smaller is rounding.
    if n < 3 or min(np.ptp(x), np.ptp(y)) < 1e-9 * n:
        return Correlation(math.nan, math.nan, n)
    rho = float(np.clip(x @ y / math.sqrt((x @ x) * (y @ y)), -1, 1))
    if degrees < 1:
        return Correlation(rho, math.nan, n)
    spare = (1 - rho) * (1 + rho)
    p = 2 * float(t.sf(abs(rho) * math.sqrt(degrees / spare), degrees)) if spare else 0.0
    return Correlation(rho, p, n)
