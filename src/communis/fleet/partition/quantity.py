"""Quantity skew: clients alike in what they hold, unlike in how much."""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array
from communis.fleet.partition.shares import deal


def by_size(
    split: Array, clients: int, alpha: float, least: int, rng: np.random.Generator
) -> Array:
    """(N,) int64: the client of each window; client sizes ~ symmetric Dirichlet(alpha), windows at
    random. alpha -> infinity: equal sizes; alpha -> 0: one client has nearly everything."""

    def shares() -> Array:
        return rng.dirichlet(np.full(clients, alpha), 1)

    return deal(np.zeros(len(split), np.int64), split, shares, least, rng)
