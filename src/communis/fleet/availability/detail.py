"""Detail: what a coarse sensor makes of the windows of a dense one.

By kind, what is averaged or left out:
    series  (N, channels, steps)                  mean over 4 steps
    csi     (N, antennas, subcarriers, packets)   mean over 19 subcarriers (114 become 6)
    points  (N, features, points)                 every 8th point (256 become 32)
    image   (N, channels, height, width)          mean over 2 x 2 pixels (8 x 8 become 4 x 4)
Where a length is no multiple, blocks are as equal as can be; one too short is a single block.
"""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array
from communis.data.recordings.recording import Kind

FACTORS: dict[Kind, dict[int, int]] = {  # axis of a window (without N) -> how many become one
    "series": {1: 4},
    "csi": {1: 19},
    "image": {1: 2, 2: 2},
}
EVERY = 8  # points


def coarse_shape(shape: tuple[int, ...], kind: Kind) -> tuple[int, ...]:
    """The shape of a coarse window, from that of a dense one; both without N."""
    if kind == "points":
        return (*shape[:-1], -(-shape[-1] // EVERY))
    factors = FACTORS[kind]
    return tuple(_blocks(n, factors.get(axis, 1)) for axis, n in enumerate(shape))


def coarsen(x: Array, kind: Kind) -> Array:
    """Windows (N, ...) as a coarse sensor sees them. NaN is left out of means; a block of nothing
    but NaN is NaN."""
    if kind == "points":
        padding = ~np.isfinite(x).all(1, keepdims=True)
        order = np.argsort(padding, axis=2, kind="stable")  # points first, so that some are kept
        return np.take_along_axis(x, order, 2)[..., ::EVERY]
    known = np.isfinite(x)
    total, count = np.where(known, x, 0), known.astype(x.dtype)
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
