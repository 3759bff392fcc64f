"""Apportionment of whole numbers by shares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from communis.core.arrays import Array


def apportioned(shares: Sequence[float] | Array, total: int) -> Array:
    """Returns whole numbers in proportion to `shares` with the sum `total`, by the largest
    remainder; of equal remainders the first has priority."""
    exact = np.asarray(shares, float) / np.sum(shares) * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    rest = np.argsort(-np.round(exact - counts, 9), kind="stable")[: total - counts.sum()]
    counts[rest] += 1
    return np.asarray(counts)
