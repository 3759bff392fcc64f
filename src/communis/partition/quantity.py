"""Quantity skew: clients alike in what they hold, unlike in how much."""

from __future__ import annotations

import numpy as np

from communis.partition.shares import deal
from communis.recordings.recording import Array


def by_size(
    split: Array, clients: int, alpha: float, least: int, rng: np.random.Generator
) -> Array:
    """(N,) int64: the client of each window; client sizes ~ symmetric Dirichlet(alpha), windows at
    random. alpha -> infinity: equal sizes; alpha -> 0: one client has nearly everything."""

    def shares() -> Array:
        return rng.dirichlet(np.full(clients, alpha), 1)

    return deal(np.zeros(len(split), np.int64), split, shares, least, rng)
