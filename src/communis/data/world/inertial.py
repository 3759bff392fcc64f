"""Inertial: readings of accelerometer, gyroscope and magnetometer on a bone, from its motion.

    acc  = Rᵀ (a - g) / |g|   specific force: at rest it points up and measures 1 g
    gyro = log(R(t-h)ᵀ R(t+h)) / 2h   angular velocity
    mag  = Rᵀ B   the earth's field

in the axes of the sensor, with its orientation R in the room. Derivatives use the step h = STEP at
every rate of the sensor: short enough that motion is nearly linear within it, and long enough that
rounding errors of single precision are negligible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from communis.data.world.body import AT, OFFSET, RADIUS, Array, Axes, Motion

GRAVITY = 9.80665  # m/s²
FIELD = (20.0, 44.0)  # microtesla: horizontal towards north, and down
NOISE = {"acc": 0.01, "gyro": 0.02, "mag": 0.5}  # standard deviations in g, rad/s, microtesla
STEP = 0.003  # seconds
MOMENTS = (-STEP, 0.0, STEP)  # times relative to a measurement at which the motion must be known
UNITS = {"acc": "g", "gyro": "rad/s", "mag": "uT"}

Placement = tuple[Array, Axes]  # position (3, people, times) and axes of a sensor


@dataclass(frozen=True)
class Site:
    """The site of a sensor: on the skin, at a share along a bone."""

    joint: int  # at the beginning of the bone
    end: int  # joint at the end of the bone
    along: float  # share of the bone


SITES = {
    "wrist": Site(AT["right_elbow"], AT["right_wrist"], 0.95),
    "pocket": Site(AT["right_hip"], AT["right_knee"], 0.35),
    "chest": Site(AT["spine"], AT["thorax"], 0.8),
    "ankle": Site(AT["right_knee"], AT["right_ankle"], 0.95),
    "head": Site(AT["neck"], AT["head"], 0.6),
}


def worn(motion: Motion, site: Site) -> Placement:
    """Returns position and axes of a sensor that is aligned with its bone."""
    turn = motion.turns[site.joint]
    out = float(RADIUS[site.end - 1]) * motion.scale[:, None]  # in front of the bone, on the skin
    along = site.along * float(OFFSET[site.end, 2]) * motion.scale[:, None]
    from_pelvis = motion.pose[site.joint] + out * turn[0] + along * turn[2]
    return motion.root + from_pelvis, turn


def measured(sensor: str, placements: Sequence[Placement], north: float) -> Array:
    """Returns (3, people, times): the reading of acc, gyro or mag, from positions and axes of the
    sensor at the three MOMENTS, in a room with an angle of `north` radians from its x axis to
    north."""
    before, at_time, after = placements
    position, turn = at_time
    if sensor == "acc":
        return specific_force(before[0], position, after[0], turn)
    if sensor == "gyro":
        return angular_velocity(before[1], after[1])
    return into_sensor(turn, field(north))


def specific_force(before: Array, now: Array, after: Array, turn: Axes) -> Array:
    """Returns (3, people, times) in g, from positions at the three MOMENTS."""
    force = (before - 2 * now + after) / (STEP**2 * GRAVITY)
    force[2] += 1
    return into_sensor(turn, force.astype(np.float32))


def angular_velocity(before: Axes, after: Axes) -> Array:
    """Returns (3, people, times) in rad/s, from axes at the first and the last of the MOMENTS. It
    is exact while the axis of rotation does not change."""
    # The rotation between them, M = beforeᵀ after, has M - Mᵀ = 2 sin(angle) [axis].
    pairs = ((2, 1), (0, 2), (1, 0))
    sine = np.stack([_dot(before[i], after[j]) - _dot(before[j], after[i]) for i, j in pairs]) / 2
    cosine = (sum(_dot(before[i], after[i]) for i in range(3)) - 1) / 2  # from its trace
    size = np.sqrt(_dot(sine, sine))
    angle = np.arctan2(size, cosine)
    return np.asarray(sine * (angle / np.maximum(size, 1e-12)) / (2 * STEP))


def field(north: float) -> Array:
    """Returns (3,) microtesla in the axes of a room with an angle of `north` radians from its x
    axis to north."""
    horizontal, down = FIELD
    return np.array([horizontal * np.cos(north), horizontal * np.sin(north), -down], np.float32)


def into_sensor(turn: Axes, vector: Array) -> Array:
    """Returns (3, people, T): a vector of the room, which may be the same for all, in the axes of
    the sensor."""
    return np.stack([_dot(axis, vector) for axis in turn])


def mounting(rng: np.random.Generator, shift: float) -> Array:
    """Draws the orientation (3, 3) of a sensor on its bone; shift 0: aligned with the bone."""
    x, y, z = 0.25 * shift * rng.standard_normal(3)
    angle = np.sqrt(x * x + y * y + z * z)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    if angle == 0:
        return np.eye(3, dtype=np.float32)
    turn = np.sin(angle) / angle * cross + (1 - np.cos(angle)) / angle**2 * cross @ cross
    return np.asarray(np.eye(3) + turn, np.float32)


def _dot(a: Array, b: Array) -> Array:
    return np.asarray(a[0] * b[0] + a[1] * b[1] + a[2] * b[2])
