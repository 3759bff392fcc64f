"""Detail: the windows of a coarse sensor, computed from those of a dense one.

By kind, the values that are averaged or left out:
    series  (N, channels, steps)                  mean over 4 steps
    csi     (N, antennas, subcarriers, packets)   mean over 19 subcarriers (114 become 6)
    points  (N, features, points)                 every 8th point (256 become 32)
    image   (N, channels, height, width)          mean over 2 x 2 pixels (8 x 8 become 4 x 4)
If a length is not a multiple, blocks are as equal as possible; a shorter length is a single block.
"""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array
from communis.data.recordings.recording import Kind

FACTORS: dict[Kind, dict[int, int]] = {  # axis of a window (without N) -> values averaged into one
    "series": {1: 4},
    "csi": {1: 19},
    "image": {1: 2, 2: 2},
}
EVERY = 8  # points, of which one is kept


def coarse_shape(shape: tuple[int, ...], kind: Kind) -> tuple[int, ...]:
    """Returns the shape of a coarse window, from that of a dense one; both without N."""
    if kind == "points":
        return (*shape[:-1], -(-shape[-1] // EVERY))
    factors = FACTORS[kind]
    return tuple(_blocks(n, factors.get(axis, 1)) for axis, n in enumerate(shape))


def coarsen(x: Array, kind: Kind) -> Array:
    """Returns the windows (N, ...) of a coarse sensor. Means leave NaN out; a block that is all NaN
    is NaN."""
    if kind == "points":
        padding = ~np.isfinite(x).all(1, keepdims=True)
        order = np.argsort(padding, axis=2, kind="stable")  # points before padding
        return np.take_along_axis(x, order, 2)[..., ::EVERY]
    known = np.isfinite(x)
    total = np.where(known, x, 0)
    count = known.astype(x.dtype)
    for axis, factor in FACTORS[kind].items():
        length = x.shape[axis + 1]
        blocks = _blocks(length, factor)
        first = np.arange(blocks) * length // blocks
        total = np.add.reduceat(total, first, axis + 1)
        count = np.add.reduceat(count, first, axis + 1)
    with np.errstate(invalid="ignore"):
        mean: Array = total / count  # 0 / 0 is NaN
    return mean


def _blocks(length: int, factor: int) -> int:
    return max(1, length // factor)
