"""LiDAR: the points where beams first meet a body, in one sweep of all beams at once.

Beams are aimed at random places of the skin, with a density that falls as that of a fixed fan of
beams does: by the square of the distance and by the slant of the skin. What a beam meets first is
what it measures, so bodies hide what is behind them.
"""

from __future__ import annotations

import numpy as np

from communis.data.world.body import BONES, OFFSET, RADIUS, Array
from communis.data.world.people import Crowd
from communis.data.world.points import looked, packed
from communis.data.world.ranging import Capsules, capsules, cast
from communis.data.world.rooms import Room

NEAR = 2.5  # metres up to which beams are dense enough for all points asked for
AIMS = 2  # beams tried per point asked for
NOISE = 0.01  # metres along the beam
AREA = np.cumsum(np.linalg.norm(OFFSET[1:], axis=1) * RADIUS)  # of the skin, up to each bone


def sweep(
    rng: np.random.Generator, crowd: Crowd, room: Room, when: float, points: int, noise: float
) -> Array:
    """(windows, 4, points): x, y, z from the sensor (ahead, left, up) and intensity, the received
    power relative to that from one metre; NaN where there are fewer points. One point at the
    sensor with no power: nobody was met."""
    shape = (crowd.windows, AIMS * points)
    who, bone, share, angle, luck = rng.random((5, *shape), np.float32)
    error = noise * NOISE * rng.standard_normal((crowd.windows, points), np.float32)
    times = np.array([when])
    bodies = [(rows, capsules(people.at(times), room.lidar)) for rows, people in crowd.members]
    aimed = np.floor(who * crowd.count[:, None]).astype(int)
    bones = np.searchsorted(AREA, bone * AREA[-1]).clip(max=len(BONES) - 1)
    target, normal = np.ones((3, *shape), np.float32), np.zeros((3, *shape), np.float32)
    for k, (rows, body) in enumerate(bodies):
        places = on_skin(body, bones[rows], share[rows], 2 * np.pi * angle[rows])
        for whole, part in zip((target, normal), places, strict=True):
            whole[:, rows] = np.where(aimed[rows] == k, part, whole[:, rows])
    distance = np.sqrt((target**2).sum(0))
    rays = target / distance
    slant = np.abs((normal * rays).sum(0))
    sent = luck < slant * np.minimum(1, (NEAR / distance) ** 2)
    beams = packed(rays, sent, points)
    reach = np.full((crowd.windows, points), np.inf, np.float32)
    for rows, body in bodies:
        met = cast(beams[rows].transpose(1, 0, 2), body)
        reach[rows] = np.minimum(reach[rows], met)
    reach[np.isinf(reach)] = np.nan
    cloud = np.concatenate([beams * (reach + error)[:, None], reach[:, None] ** -2], 1)
    return looked(cloud, 0.0)


def on_skin(body: Capsules, bone: Array, share: Array, angle: Array) -> tuple[Array, Array]:
    """Points (3, R, B) and the outward normals there: on bone (R, B), a share along it, at an angle
    around it."""
    bones = body.end - body.start  # (16, 3, R)
    x, y, z = (bones / np.sqrt((bones**2).sum(1, keepdims=True))).transpose(1, 0, 2)
    # Any direction across the bone will do to count the angle from.
    flat = np.abs(z) < 0.7
    side = np.stack([np.where(flat, -y, 0), np.where(flat, x, z), np.where(flat, 0, -y)], 1)
    side /= np.sqrt((side**2).sum(1, keepdims=True))
    other = np.cross(np.stack([x, y, z], 1), side, axis=1)
    at = bone * bones.shape[2] + np.arange(bones.shape[2])[:, None]
    start, bones, side, other = (
        v.transpose(1, 0, 2).reshape(3, -1)[:, at] for v in (body.start, bones, side, other)
    )
    normal = np.cos(angle) * side + np.sin(angle) * other
    return start + share * bones + body.radius.ravel()[at] * normal, normal
