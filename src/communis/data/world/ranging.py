"""Ranging: rays against bodies made of capsules; depth images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communis.data.world.body import BONES, RADIUS, Array, Motion
from communis.data.world.people import Crowd
from communis.data.world.rooms import Mount, Room

FIELD_OF_VIEW = np.radians(80.0)  # of the camera, across
NOISE = 0.01  # metres per metre of depth


@dataclass(frozen=True)
class Capsules:
    """Bodies as a sensor sees them: the rows are those windows in which such a person is there."""

    start: Array  # (16, 3, R) in the sensor's axes
    end: Array  # (16, 3, R)
    radius: Array  # (16, R)


def capsules(motion: Motion, mount: Mount) -> Capsules:
    """At the first time of the motion."""
    joints = mount.local(motion.joints[..., 0].transpose(1, 0, 2))
    start, end = joints[:, [a for a, _ in BONES]], joints[:, 1:]
    radius = (RADIUS[:, None] * motion.scale).astype(np.float32)
    return Capsules(start.transpose(1, 0, 2), end.transpose(1, 0, 2), radius)


def cast(rays: Array, body: Capsules) -> Array:
    """(R, B): how far unit rays (3, R or 1, B) from the sensor go until they meet the body;
    infinite if they miss it."""
    bones = body.end - body.start
    by_row = rays.transpose(1, 0, 2)
    slopes, aheads = (v.transpose(2, 0, 1) @ by_row for v in (bones, body.start))  # (R, 16, B)
    nearest = np.full((len(slopes), rays.shape[2]), np.inf, np.float32)
    for k, (bone, start, radius) in enumerate(zip(bones, body.start, body.radius, strict=True)):
        slope, ahead = slopes[:, k], aheads[:, k]
        length, lean, far = ((a * b).sum(0)[:, None] for a, b in
                             ((bone, bone), (bone, start), (start, start)))  # fmt: skip
        # The endless cylinder is entered where across t² - 2 middle t + rest = 0.
        across = length - slope * slope
        middle = length * ahead - lean * slope
        rest = length * (far - radius[:, None] ** 2) - lean * lean
        root = middle * middle - across * rest
        met = np.nonzero(root > 0)
        slope, ahead, across, middle, root = (x[met] for x in (slope, ahead, across, middle, root))
        length, lean, far = (x[met[0], 0] for x in (length, lean, far))
        enter = (middle - np.sqrt(root)) / np.maximum(across, 1e-6 * length)
        share = (enter * slope - lean) / length  # of the bone, there
        # Beyond an end of the bone it is the ball around that end which counts.
        cap = np.clip(share, 0, 1)
        along = ahead + cap * slope
        ball = radius[met[0]] ** 2 - far - cap * (2 * lean + cap * length) + along * along
        enter = np.where(share == cap, enter, along - np.sqrt(np.maximum(ball, 0)))
        missed = ((share != cap) & (ball <= 0)) | (enter <= 0)
        nearest[met] = np.minimum(nearest[met], np.where(missed, np.inf, enter))
    return nearest


def depth(crowd: Crowd, room: Room, when: float, height: int, width: int) -> Array:
    """(windows, height, width): metres ahead of the camera to the nearest body or wall, `when`
    seconds after the start of each window."""
    rays = pixels(height, width)
    reach = np.tile(walls(rays, room.camera, room), (crowd.windows, 1))
    for rows, people in crowd.members:
        body = capsules(people.at(np.array([when])), room.camera)
        reach[rows] = np.minimum(reach[rows], cast(rays[:, None], body))
    return np.asarray((reach * rays[0]).reshape(crowd.windows, height, width))


def pixels(height: int, width: int) -> Array:
    """(3, height * width): unit rays through a pinhole, from top left, in ahead, left, up."""
    half = np.tan(FIELD_OF_VIEW / 2)
    left = half * (1 - (np.arange(width) + 0.5) * 2 / width)
    up = half * height / width * (1 - (np.arange(height) + 0.5) * 2 / height)
    up, left = (grid.ravel() for grid in np.meshgrid(up, left, indexing="ij"))
    rays = np.stack([np.ones_like(left), left, up])
    return np.asarray(rays / np.linalg.norm(rays, axis=0), np.float32)


def walls(rays: Array, mount: Mount, room: Room) -> Array:
    """(B,): how far rays go from inside the room to a wall, the floor or the ceiling."""
    ways = mount.axes @ rays
    with np.errstate(divide="ignore"):
        reach = np.where(ways > 0, room.size[:, None] - mount.position[:, None],
                         -mount.position[:, None]) / ways  # fmt: skip
    reach = np.where(ways == 0, np.inf, np.abs(reach))
    return np.asarray(reach.min(0), np.float32)
