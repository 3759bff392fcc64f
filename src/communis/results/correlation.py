"""Rank correlation, also with a third quantity held fixed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Correlation:
    rho: float  # NaN where it is not defined: too few points, or a quantity that does not vary
    p: float  # two-sided, if the points are independent of each other
    n: int  # points with finite values


def spearman(x: npt.ArrayLike, y: npt.ArrayLike) -> Correlation:
    """Spearman's rank correlation; points with a NaN are left out."""
    ranks_x, ranks_y = _ranks(x, y)
    return _correlation(ranks_x, ranks_y, degrees=len(ranks_x) - 2)


def partial_spearman(x: npt.ArrayLike, y: npt.ArrayLike, given: npt.ArrayLike) -> Correlation:
    """Spearman's rank correlation of the parts of x and y that the ranks of `given` do not explain
    linearly. A `given` that does not vary explains nothing."""
    ranks_x, ranks_y, ranks_given = _ranks(x, y, given)
    n = len(ranks_given)
    if n:
        centred = ranks_given - ranks_given.mean()
        weights = centred / (float(centred @ centred) or 1.0)
        ranks_x = ranks_x - ranks_x.mean() - (ranks_x @ weights) * centred
        ranks_y = ranks_y - ranks_y.mean() - (ranks_y @ weights) * centred
    return _correlation(ranks_x, ranks_y, degrees=n - 3)


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
    if n:
        x = x - x.mean()
        y = y - y.mean()
    # Ranks vary by at least half a unit or not at all: smaller variations are rounding errors.
    if n < 3 or min(np.ptp(x), np.ptp(y)) < 1e-9 * n:
        return Correlation(math.nan, math.nan, n)
    rho = float(np.clip(x @ y / math.sqrt((x @ x) * (y @ y)), -1, 1))
    if degrees < 1:
        return Correlation(rho, math.nan, n)
    unexplained = (1 - rho) * (1 + rho)
    if not unexplained:
        return Correlation(rho, 0.0, n)
    p = 2 * float(t.sf(abs(rho) * math.sqrt(degrees / unexplained), degrees))
    return Correlation(rho, p, n)
