"""Independent Bernoulli draws, conditioned on at least one success."""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array


def nonempty_subset(there: Array, probability: Array, rng: np.random.Generator) -> Array:
    """Returns (n, M) bool: each entry of `there` (n, M) is kept with its row's probability (n,),
    and at least one entry of every row that has any.

    The distribution is that of redrawing an empty row until it is not empty. Rows that came out
    empty are drawn from this distribution directly, by the first entry that is kept, so that small
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
    first = np.minimum(first, again.sum(1) - 1)[:, None]  # guards against rounding
    later = (rank > first) & (rng.random(again.shape) < p[:, None])
    kept[rows] = again & ((rank == first) | later)
    return kept
