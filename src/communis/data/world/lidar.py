"""LiDAR: the points where beams first meet a body, in one sweep of all beams at once.

Beams are aimed at random places of the skin. Their density falls as that of a fixed fan of beams:
with the square of the distance and with the slant of the skin. A beam measures the first body on
its way, so bodies hide what is behind them.
"""

from __future__ import annotations

import numpy as np

from communis.data.world.body import BONES, OFFSET, RADIUS, Array
from communis.data.world.people import Crowd
from communis.data.world.points import packed, without_empty
from communis.data.world.ranging import Capsules, capsules, cast
from communis.data.world.rooms import Room

NEAR = 2.5  # metres up to which beams are dense enough for all requested points
AIMS = 2  # beams tried per requested point
NOISE = 0.01  # metres along the beam
AREA = np.cumsum(np.linalg.norm(OFFSET[1:], axis=1) * RADIUS)  # of the skin, cumulative over bones


def sweep(
    rng: np.random.Generator, crowd: Crowd, room: Room, when: float, points: int, noise: float
) -> Array:
    """Returns (windows, 4, points): x, y, z from the sensor (ahead, left, up) and intensity, the
    received power relative to that from one metre; NaN for missing points. A window in which no
    beam meets a body has one point: at the sensor, without power."""
    shape = (crowd.windows, AIMS * points)
    who, bone, share, angle, chance = rng.random((5, *shape), np.float32)
    error = noise * NOISE * rng.standard_normal((crowd.windows, points), np.float32)
    times = np.array([when])
    bodies = [(rows, capsules(people.at(times), room.lidar)) for rows, people in crowd.members]
    aimed = np.floor(who * crowd.count[:, None]).astype(int)
    bones = np.searchsorted(AREA, bone * AREA[-1]).clip(max=len(BONES) - 1)
    target = np.ones((3, *shape), np.float32)
    normal = np.zeros((3, *shape), np.float32)
    for k, (rows, body) in enumerate(bodies):
        points_of, normals_of = on_skin(body, bones[rows], share[rows], 2 * np.pi * angle[rows])
        on_person = aimed[rows] == k
        target[:, rows] = np.where(on_person, points_of, target[:, rows])
        normal[:, rows] = np.where(on_person, normals_of, normal[:, rows])
    distance = np.sqrt((target**2).sum(0))
    rays = target / distance
    slant = np.abs((normal * rays).sum(0))
    sent = chance < slant * np.minimum(1, (NEAR / distance) ** 2)
    beams = packed(rays, sent, points)
    reach = np.full((crowd.windows, points), np.inf, np.float32)
    for rows, body in bodies:
        met = cast(beams[rows].transpose(1, 0, 2), body)
        reach[rows] = np.minimum(reach[rows], met)
    reach[np.isinf(reach)] = np.nan
    cloud = np.concatenate([beams * (reach + error)[:, None], reach[:, None] ** -2], 1)
    return without_empty(cloud, 0.0)


def on_skin(body: Capsules, bone: Array, share: Array, angle: Array) -> tuple[Array, Array]:
    """Returns points (3, R, B) and their outward normals: on bone (R, B), at a share along it, and
    at an angle around it."""
    bones = body.end - body.start  # (16, 3, R)
    x, y, z = (bones / np.sqrt((bones**2).sum(1, keepdims=True))).transpose(1, 0, 2)
    # The angle can start at any direction across the bone.
    flat = np.abs(z) < 0.7
    side = np.stack([np.where(flat, -y, 0), np.where(flat, x, z), np.where(flat, 0, -y)], 1)
    side /= np.sqrt((side**2).sum(1, keepdims=True))
    other = np.cross(np.stack([x, y, z], 1), side, axis=1)
    at = bone * bones.shape[2] + np.arange(bones.shape[2])[:, None]
    normal = np.cos(angle) * _selected(side, at) + np.sin(angle) * _selected(other, at)
    on_axis = _selected(body.start, at) + share * _selected(bones, at)
    return on_axis + body.radius.ravel()[at] * normal, normal


def _selected(vectors: Array, at: Array) -> Array:
    """Returns vectors (3, R, B) of (bones, 3, R), by index of bone and row."""
    return np.asarray(vectors.transpose(1, 0, 2).reshape(3, -1)[:, at])
