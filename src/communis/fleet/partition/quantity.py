"""Quantity skew: clients with the same label distribution and different numbers of windows."""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array
from communis.fleet.partition.shares import deal


def by_size(
    split: Array, clients: int, alpha: float, least: int, rng: np.random.Generator
) -> Array:
    """Returns (N,) int64: the client of each window. Client sizes follow a symmetric
    Dirichlet(alpha), windows are chosen at random. alpha -> infinity: equal sizes; alpha -> 0: one
    client has nearly all windows."""

    def shares() -> Array:
        return rng.dirichlet(np.full(clients, alpha), 1)

    return deal(np.zeros(len(split), np.int64), split, shares, least, rng)
