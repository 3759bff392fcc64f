"""Ranging: intersection of rays with bodies made of capsules; depth images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communis.data.world.body import BONES, RADIUS, Array, Motion
from communis.data.world.people import Crowd
from communis.data.world.rooms import Mount, Room

FIELD_OF_VIEW = np.radians(80.0)  # of the camera, horizontal
NOISE = 0.01  # metres per metre of depth


@dataclass(frozen=True)
class Capsules:
    """Bodies relative to a sensor; the rows are the windows in which a person is present."""

    start: Array  # (16, 3, R) in the sensor's axes
    end: Array  # (16, 3, R)
    radius: Array  # (16, R)


def capsules(motion: Motion, mount: Mount) -> Capsules:
    """Returns the bodies at the first time of the motion."""
    joints = mount.local(motion.joints[..., 0].transpose(1, 0, 2))
    start = joints[:, [parent for parent, _ in BONES]]
    end = joints[:, 1:]
    radius = (RADIUS[:, None] * motion.scale).astype(np.float32)
    return Capsules(start.transpose(1, 0, 2), end.transpose(1, 0, 2), radius)


def cast(rays: Array, body: Capsules) -> Array:
    """Returns (R, B): the distance at which unit rays (3, R or 1, B) from the sensor meet the body;
    infinite for rays that miss it.

    With a ray d, and a bone from a along b: slope = d·b, ahead = d·a, length = b·b, lean = a·b and
    far = a·a.
    """
    bones = body.end - body.start
    by_row = rays.transpose(1, 0, 2)
    slopes = bones.transpose(2, 0, 1) @ by_row  # (R, 16, B)
    aheads = body.start.transpose(2, 0, 1) @ by_row
    nearest = np.full((len(slopes), rays.shape[2]), np.inf, np.float32)
    for k, (bone, start, radius) in enumerate(zip(bones, body.start, body.radius, strict=True)):
        slope = slopes[:, k]
        ahead = aheads[:, k]
        length = (bone * bone).sum(0)[:, None]
        lean = (bone * start).sum(0)[:, None]
        far = (start * start).sum(0)[:, None]
        # A ray enters the infinite cylinder where across t² - 2 middle t + rest = 0.
        across = length - slope * slope
        middle = length * ahead - lean * slope
        rest = length * (far - radius[:, None] ** 2) - lean * lean
        root = middle * middle - across * rest
        met = np.nonzero(root > 0)
        # From here on, only rays that meet the cylinder.
        slope = slope[met]
        ahead = ahead[met]
        length = length[met[0], 0]
        lean = lean[met[0], 0]
        far = far[met[0], 0]
        enter = (middle[met] - np.sqrt(root[met])) / np.maximum(across[met], 1e-6 * length)
        share = (enter * slope - lean) / length  # position along the bone
        # Beyond the ends of the bone, rays enter the ball around the end instead.
        cap = np.clip(share, 0, 1)
        along = ahead + cap * slope
        ball = radius[met[0]] ** 2 - far - cap * (2 * lean + cap * length) + along * along
        enter = np.where(share == cap, enter, along - np.sqrt(np.maximum(ball, 0)))
        missed = ((share != cap) & (ball <= 0)) | (enter <= 0)
        nearest[met] = np.minimum(nearest[met], np.where(missed, np.inf, enter))
    return nearest


def depth(crowd: Crowd, room: Room, when: float, height: int, width: int) -> Array:
    """Returns (windows, height, width): metres ahead of the camera to the nearest body or wall,
    `when` seconds after the start of each window."""
    rays = pixels(height, width)
    reach = np.tile(walls(rays, room.camera, room), (crowd.windows, 1))
    for rows, people in crowd.members:
        body = capsules(people.at(np.array([when])), room.camera)
        reach[rows] = np.minimum(reach[rows], cast(rays[:, None], body))
    return np.asarray((reach * rays[0]).reshape(crowd.windows, height, width))


def pixels(height: int, width: int) -> Array:
    """Returns (3, height * width): unit rays through a pinhole, from top left, in ahead, left,
    up."""
    half = np.tan(FIELD_OF_VIEW / 2)
    left_of_columns = half * (1 - (np.arange(width) + 0.5) * 2 / width)
    up_of_rows = half * height / width * (1 - (np.arange(height) + 0.5) * 2 / height)
    up, left = np.meshgrid(up_of_rows, left_of_columns, indexing="ij")
    rays = np.stack([np.ones(left.size), left.ravel(), up.ravel()])
    return np.asarray(rays / np.linalg.norm(rays, axis=0), np.float32)


def walls(rays: Array, mount: Mount, room: Room) -> Array:
    """Returns (B,): the distance of rays from the sensor to a wall, the floor or the ceiling."""
    direction = mount.axes @ rays
    position = mount.position[:, None]
    to_wall = np.where(direction > 0, room.size[:, None] - position, -position)
    with np.errstate(divide="ignore"):
        reach = to_wall / direction
    reach = np.where(direction == 0, np.inf, np.abs(reach))
    return np.asarray(reach.min(0), np.float32)
