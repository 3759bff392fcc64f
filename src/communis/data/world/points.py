"""Points: clouds of varying size in arrays of one size."""

from __future__ import annotations

import numpy as np

from communis.data.world.body import Array


def packed(values: Array, keep: Array, points: int) -> Array:
    """(N, features, points) float32 from (features, N, tried): the first of those kept, in their
    order, then NaN."""
    first = np.argsort(~keep, axis=1, kind="stable")[:, :points]
    kept = np.take_along_axis(keep, first, 1)
    chosen = np.take_along_axis(values, first[None], 2)
    return np.where(kept, chosen, np.nan).astype(np.float32).transpose(1, 0, 2)


def looked(clouds: Array, nothing: float) -> Array:
    """The clouds (N, features, points), where one without a point gets one: at the sensor itself
    with intensity `nothing`, the last feature. It looked and saw nothing, which is not the same as
    a sensor that is missing."""
    clouds[np.isnan(clouds).all((1, 2)), :, 0] = (*(0.0,) * (clouds.shape[1] - 1), nothing)
    return clouds
