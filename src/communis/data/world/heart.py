"""Heart: beats per minute that follow effort with a lag, dh/dt = (rest + effort - h) / lag."""

from __future__ import annotations

import numpy as np

from communis.data.world.body import Array

REST = 64.0  # beats per minute
LAG = 40.0  # seconds
NOISE = 1.0  # beats per minute


def rate(level: Array, seconds: float, times: Array, first: float, lag: float = LAG) -> Array:
    """(N, T): the heart rate in N consecutive windows of `seconds`, at times (T,) within each.

    level: (N,) what the heart would settle at in each window; first: its rate at the beginning.
    The exact solution, from one change of level to the next.
    """
    changes = np.flatnonzero(np.diff(level)) + 1
    begins = np.concatenate([[0], changes])
    lengths = np.diff(np.concatenate([begins, [len(level)]]))
    at = np.empty(len(begins))  # the rate when each level begins
    now = first
    for i, (begin, length) in enumerate(zip(begins, lengths, strict=True)):
        at[i] = now
        now = level[begin] + (now - level[begin]) * np.exp(-length * seconds / lag)
    elapsed = (np.arange(len(level)) - np.repeat(begins, lengths))[:, None] * seconds + times
    settle = level[:, None]
    return np.asarray(settle + (np.repeat(at, lengths)[:, None] - settle) * np.exp(-elapsed / lag))
