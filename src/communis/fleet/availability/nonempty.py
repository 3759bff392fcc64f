"""Some of them: independent draws, given that at least one succeeds."""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array


def some_of(there: Array, probability: Array, rng: np.random.Generator) -> Array:
    """(n, M) bool: each entry of `there` (n, M) is kept with its row's probability (n,), and at
    least one of every row that has any.

    The law is that of drawing an empty row again until it is not empty. Rows that came out empty
    are drawn from it directly, by which of their entries is the first to be kept, so that small
    probabilities cost no more than large ones.
    """
    kept: Array = there & (rng.random(there.shape) < probability[:, None])
    rows = np.flatnonzero(there.any(1) & ~kept.any(1))
    again = there[rows]
    rank = np.cumsum(again, 1) - 1
    p = np.maximum(probability[rows], 1e-12)  # below that, all entries are equally likely
    none = np.log1p(-p)
    not_empty = -np.expm1(again.sum(1) * none)
    first = np.floor(np.log1p(-rng.random(len(rows)) * not_empty) / none)
    first = np.minimum(first, again.sum(1) - 1)[:, None]  # rounding at the end of the range
    later = (rank > first) & (rng.random(again.shape) < p[:, None])
    kept[rows] = again & ((rank == first) | later)
    return kept
