"""Heart: a heart rate that follows effort with a lag, dh/dt = (rest + effort - h) / lag."""

from __future__ import annotations

import numpy as np

from communis.data.world.body import Array

REST = 64.0  # beats per minute
LAG = 40.0  # seconds
NOISE = 1.0  # beats per minute


def rate(level: Array, seconds: float, times: Array, first: float, lag: float = LAG) -> Array:
    """Returns (N, T): the heart rate in N consecutive windows of `seconds`, at times (T,) in each.

    level: (N,) final rate of each window's effort; first: the rate at the beginning. The solution
    is exact, from one change of level to the next.
    """
    changes = np.flatnonzero(np.diff(level)) + 1
    begins = np.concatenate([[0], changes])
    lengths = np.diff(np.concatenate([begins, [len(level)]]))
    initial = np.empty(len(begins))  # the rate at the beginning of each level
    current = first
    for i, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
        initial[i] = current
        current = level[begin] + (current - level[begin]) * np.exp(-length * seconds / lag)
    elapsed = (np.arange(len(level)) - np.repeat(begins, lengths))[:, None] * seconds + times
    final = level[:, None]
    start = np.repeat(initial, lengths)[:, None]
    return np.asarray(final + (start - final) * np.exp(-elapsed / lag))
