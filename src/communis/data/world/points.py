"""Points: point clouds of different sizes in arrays of one size."""

from __future__ import annotations

import numpy as np

from communis.data.world.body import Array


def packed(values: Array, keep: Array, points: int) -> Array:
    """Returns (N, features, points) float32 from (features, N, candidates): the first candidates to
    keep, in their order, then NaN."""
    first = np.argsort(~keep, axis=1, kind="stable")[:, :points]
    kept = np.take_along_axis(keep, first, 1)
    chosen = np.take_along_axis(values, first[None], 2)
    return np.where(kept, chosen, np.nan).astype(np.float32).transpose(1, 0, 2)


def without_empty(clouds: Array, intensity: float) -> Array:
    """Adds one point to every empty cloud of (N, features, points), in place: at the sensor, with
    `intensity` as the last feature. An empty cloud would mean that the sensor is missing, but it
    was present and detected nothing."""
    empty = np.isnan(clouds).all((1, 2))
    point = np.zeros(clouds.shape[1])
    point[-1] = intensity
    clouds[empty, :, 0] = point
    return clouds
