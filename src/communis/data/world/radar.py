"""Radar: mmWave detections with Doppler from points of moving bodies.

A detection is a place on a bone at the time of a frame. Its velocity is the rate at which its
distance grows, its power falls with the fourth power of the distance and fades at random as echoes
of many scatterers do (exponential power); what is too weak is not detected, and some is lost.
"""

from __future__ import annotations

import numpy as np

from communis.data.world.body import BONES, RADIUS, Array, Motion
from communis.data.world.people import Crowd
from communis.data.world.points import looked, packed
from communis.data.world.rooms import Room

STEP = 0.01  # seconds before and after a frame between which velocity is taken
THRESHOLD = -48.0  # decibels
LOST = 0.1  # share of detections that fail for no reason
FIELD_OF_VIEW = np.radians(140.0)  # across
SECTION = 8.0 * RADIUS**2  # m², of each bone
NOISE = {"range": 0.04, "angle": np.radians(1.5), "doppler": 0.08}  # m, rad, m/s


def detect(
    rng: np.random.Generator, crowd: Crowd, room: Room, frames: Array, points: int, noise: float
) -> Array:
    """(windows, 5, points): x, y, z from the sensor (ahead, left, up), velocity in m/s (positive:
    moving away) and intensity in decibels; earlier frames first, NaN where there are fewer. One
    point at rest at the sensor, as strong as the threshold: there was no echo above it.
    frames: (F,) seconds from the start of the window, shared evenly by the points."""
    shape = (crowd.windows, points)
    who, share, lost = rng.random((3, *shape))
    bone = rng.integers(len(BONES), size=shape)
    fading = 10 * np.log10(rng.exponential(size=shape))
    error = noise * rng.standard_normal((4, *shape))
    frame = np.arange(points) * len(frames) // points
    chosen = np.floor(who * crowd.count[:, None]).astype(int)
    place, speed, section = np.ones((3, *shape)), np.zeros(shape), SECTION[bone]
    for k, (rows, people) in enumerate(crowd.members):
        motion = people.at(np.concatenate([frames - STEP, frames + STEP]))
        before, after = (
            room.radar.local(_on_bones(motion, bone[rows], share[rows], at))
            for at in (frame, frame + len(frames))
        )
        mine = chosen[rows] == k
        place[:, rows] = np.where(mine, (before + after) / 2, place[:, rows])
        speed[rows] = np.where(mine, (_size(after) - _size(before)) / (2 * STEP), speed[rows])
        section[rows] *= np.where(mine, motion.scale[:, None] ** 2, 1)
    distance, azimuth = _size(place), np.arctan2(place[1], place[0])
    power = echo(section, distance) + fading
    seen = (power > THRESHOLD) & (lost > LOST) & (np.abs(azimuth) < FIELD_OF_VIEW / 2)
    seen &= crowd.count[:, None] > 0
    azimuth += NOISE["angle"] * error[0]
    elevation = np.arcsin(place[2] / distance) + NOISE["angle"] * error[1]
    distance += NOISE["range"] * error[2]
    level = distance * np.cos(elevation)
    spot = (level * np.cos(azimuth), level * np.sin(azimuth), distance * np.sin(elevation))
    found = np.stack([*spot, speed + NOISE["doppler"] * error[3], power])
    return looked(packed(found, seen, points), THRESHOLD)


def echo(section: Array, distance: Array) -> Array:
    """Decibels relative to one square metre at one metre."""
    return np.asarray(10 * np.log10(section) - 40 * np.log10(distance))


def _on_bones(motion: Motion, bone: Array, share: Array, at: Array) -> Array:
    """(3, R, P): places a share along a bone (R, P) at the motion's times of index (P,)."""
    joints, row = np.moveaxis(motion.joints, 1, 0), np.arange(len(bone))[:, None]
    parents = np.array([parent for parent, _ in BONES])
    start, end = joints[:, parents[bone], row, at], joints[:, bone + 1, row, at]
    return np.asarray(start + share * (end - start))


def _size(vector: Array) -> Array:
    return np.asarray(np.sqrt((vector**2).sum(0)))
