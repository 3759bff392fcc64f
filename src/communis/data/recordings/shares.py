"""Shares as whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from communis.core.arrays import Array


def apportioned(shares: Sequence[float] | Array, total: int) -> Array:
    """Whole numbers in proportion to `shares` that add up to `total`, by largest remainder; equal
    remainders go to the first."""
    exact = np.asarray(shares, float) / np.sum(shares) * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    rest = np.argsort(-np.round(exact - counts, 9), kind="stable")[: total - counts.sum()]
    counts[rest] += 1
    return np.asarray(counts)
