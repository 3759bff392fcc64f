"""Radar: mmWave detections with Doppler velocity from points of moving bodies.

A detection is a position on a bone at the time of a frame. Its velocity is the rate at which its
distance grows. Its power falls with the fourth power of the distance, with random fading as in
echoes of many scatterers (exponential power). Echoes below a threshold are not detected, and some
detections are lost.
"""

from __future__ import annotations

import numpy as np

from communis.data.world.body import BONES, RADIUS, Array, Motion
from communis.data.world.people import Crowd
from communis.data.world.points import packed, without_empty
from communis.data.world.rooms import Room

STEP = 0.01  # seconds before and after a frame between which velocity is taken
THRESHOLD = -48.0  # decibels
LOST = 0.1  # share of detections that are lost at random
FIELD_OF_VIEW = np.radians(140.0)  # horizontal
SECTION = 8.0 * RADIUS**2  # m², of each bone
NOISE = {"range": 0.04, "angle": np.radians(1.5), "doppler": 0.08}  # m, rad, m/s


def detect(
    rng: np.random.Generator, crowd: Crowd, room: Room, frames: Array, points: int, noise: float
) -> Array:
    """Returns (windows, 5, points): x, y, z from the sensor (ahead, left, up), velocity in m/s
    (positive: moving away) and intensity in decibels; earlier frames first, NaN for missing points.
    A window without detections has one point: at rest at the sensor, with the threshold as
    intensity.

    frames: (F,) seconds from the start of the window; each has the same number of points.
    """
    shape = (crowd.windows, points)
    who, share, lost = rng.random((3, *shape))
    bone = rng.integers(len(BONES), size=shape)
    fading = 10 * np.log10(rng.exponential(size=shape))
    error = noise * rng.standard_normal((4, *shape))
    frame = np.arange(points) * len(frames) // points
    chosen = np.floor(who * crowd.count[:, None]).astype(int)
    place = np.ones((3, *shape))
    speed = np.zeros(shape)
    section = SECTION[bone]
    for k, (rows, people) in enumerate(crowd.members):
        motion = people.at(np.concatenate([frames - STEP, frames + STEP]))
        before = room.radar.local(_on_bones(motion, bone[rows], share[rows], frame))
        later = frame + len(frames)
        after = room.radar.local(_on_bones(motion, bone[rows], share[rows], later))
        on_person = chosen[rows] == k
        velocity = (_size(after) - _size(before)) / (2 * STEP)
        place[:, rows] = np.where(on_person, (before + after) / 2, place[:, rows])
        speed[rows] = np.where(on_person, velocity, speed[rows])
        section[rows] *= np.where(on_person, motion.scale[:, None] ** 2, 1)
    distance = _size(place)
    azimuth = np.arctan2(place[1], place[0])
    power = echo(section, distance) + fading
    detected = (power > THRESHOLD) & (lost > LOST) & (np.abs(azimuth) < FIELD_OF_VIEW / 2)
    detected &= crowd.count[:, None] > 0
    azimuth += NOISE["angle"] * error[0]
    elevation = np.arcsin(place[2] / distance) + NOISE["angle"] * error[1]
    distance += NOISE["range"] * error[2]
    horizontal = distance * np.cos(elevation)
    x = horizontal * np.cos(azimuth)
    y = horizontal * np.sin(azimuth)
    z = distance * np.sin(elevation)
    features = np.stack([x, y, z, speed + NOISE["doppler"] * error[3], power])
    return without_empty(packed(features, detected, points), THRESHOLD)


def echo(section: Array, distance: Array) -> Array:
    """Returns the power in decibels relative to one square metre at one metre."""
    return np.asarray(10 * np.log10(section) - 40 * np.log10(distance))


def _on_bones(motion: Motion, bone: Array, share: Array, at: Array) -> Array:
    """Returns (3, R, P): positions at a share along a bone (R, P), at times with the indices `at`
    (P,)."""
    joints = np.moveaxis(motion.joints, 1, 0)
    row = np.arange(len(bone))[:, None]
    parents = np.array([parent for parent, _ in BONES])
    start = joints[:, parents[bone], row, at]
    end = joints[:, bone + 1, row, at]
    return np.asarray(start + share * (end - start))


def _size(vector: Array) -> Array:
    return np.asarray(np.sqrt((vector**2).sum(0)))
