"""People in simple situations, for tests with closed forms."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from communis.data.world.actions import NAMES
from communis.data.world.body import Array
from communis.data.world.people import Crowd, People, habits, people
from communis.data.world.rooms import Mount, Room, room


def plain_room() -> Room:
    return room(np.random.default_rng(0), 0.0)


def row(action: str = "standing", rows: int = 1, shift: float = 0.0, seed: int = 0) -> People:
    rng = np.random.default_rng(seed)
    doing = np.full(rows, NAMES.index(action))
    return people(rng, doing, habits(rng, rows, shift), plain_room(), variation=0.1 * shift)


def statue(place: tuple[float, float] = (3.0, 2.5), heading: float = 0.0) -> People:
    """Upright with hanging arms, and nothing moves."""
    one = row()
    return replace(
        one,
        offset=0 * one.offset,
        swing=0 * one.swing,
        centre=np.array(place)[:, None],
        heading=np.array([heading]),
    )


def sliding(velocity: float, start: float) -> People:
    """A statue on a huge round: it passes (start, 2.5) along the x axis at `velocity` m/s."""
    radius = 1e6
    return replace(
        statue(),
        centre=np.array([[start], [2.5 + radius]]),
        radius=np.array([radius]),
        pace=np.array([velocity / radius]),
        along=np.array([-np.pi / 2]),
    )


def crowd(*members: People) -> Crowd:
    return Crowd(1, tuple((np.array([0]), one) for one in members))


def looking_ahead(position: tuple[float, float, float]) -> Mount:
    """A sensor that looks along the x axis."""
    return Mount(np.array(position), np.eye(3))


def lengths(joints: Array) -> Array:
    """(16, people, times) of the bones."""
    from communis.data.world.body import BONES

    return np.stack([np.linalg.norm(joints[b] - joints[a], axis=0) for a, b in BONES])
