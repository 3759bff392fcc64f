"""Body: seventeen joints in the order of Human3.6M, and forward kinematics with rigid bones.

The turn of a joint is the orientation of the bones that leave it; the axes of a body are ahead (x),
left (y), up (z). The position of a joint is that of its parent plus the parent's turn applied to a
fixed offset, so the lengths of bones do not depend on the angles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Axes = tuple[Array, Array, Array]  # ahead, left and up of a bone in the room, (3, people, times)

JOINTS = (
    "pelvis", "right_hip", "right_knee", "right_ankle", "left_hip", "left_knee", "left_ankle",
    "spine", "thorax", "neck", "head", "left_shoulder", "left_elbow", "left_wrist",
    "right_shoulder", "right_elbow", "right_wrist",
)  # fmt: skip
AT = {name: i for i, name in enumerate(JOINTS)}
PARENT = (-1, 0, 1, 2, 0, 4, 5, 0, 7, 8, 9, 8, 11, 12, 8, 14, 15)
STATURE = 1.75  # metres, of the body with the lengths below; other bodies are scaled
ANKLE = 0.08  # height of an ankle above the floor
OFFSET = np.array([
    (0, 0, 0), (0, -0.10, 0), (0, 0, -0.43), (0, 0, -0.43), (0, 0.10, 0), (0, 0, -0.43),
    (0, 0, -0.43), (0, 0, 0.23), (0, 0, 0.26), (0, 0, 0.12), (0.02, 0, 0.16), (0, 0.18, 0),
    (0, 0, -0.29), (0, 0, -0.26), (0, -0.18, 0), (0, 0, -0.29), (0, 0, -0.26),
])  # fmt: skip
BONES = tuple((PARENT[j], j) for j in range(1, len(JOINTS)))
RADIUS = np.array([
    0.10, 0.08, 0.055, 0.10, 0.08, 0.055, 0.13, 0.13, 0.06, 0.09, 0.08, 0.05, 0.04, 0.08, 0.05,
    0.04,
])  # metres, of the capsule around each bone  # fmt: skip

X, Y, Z = 0, 1, 2
DOFS = (  # name, joint, axis, sign; angles grow in the anatomical sense on both sides
    ("twist", 0, Z, 1), ("lean", 0, Y, 1), ("sway", 0, X, 1),
    ("counter", 7, Z, 1), ("bend", 7, Y, 1),
    ("spread_r", 1, X, -1), ("hip_r", 1, Y, -1), ("knee_r", 2, Y, 1),
    ("spread_l", 4, X, 1), ("hip_l", 4, Y, -1), ("knee_l", 5, Y, 1),
    ("lift_r", 14, X, -1), ("shoulder_r", 14, Y, -1), ("wave_r", 15, X, -1), ("elbow_r", 15, Y, -1),
    ("lift_l", 11, X, 1), ("shoulder_l", 11, Y, -1), ("elbow_l", 12, Y, -1),
)  # fmt: skip
DOF = {name: i for i, (name, *_) in enumerate(DOFS)}


@dataclass(frozen=True)
class Motion:
    """The joints of people at several times."""

    pose: Array  # (17, 3, people, times) metres from the pelvis along the axes of the room
    root: Array  # (3, people, times) position of the pelvis, in double precision for derivatives
    turns: tuple[Axes, ...]  # orientation of the bones that leave each joint
    scale: Array  # (people,) size relative to the reference body

    @property
    def joints(self) -> Array:
        """(17, 3, people, times) metres in the room."""
        return np.asarray(self.pose + self.root.astype(np.float32))


def forward(angles: Array, ahead: Array, stature: Array) -> Motion:
    """Returns the bodies with the pelvis at the origin. angles: (18, people, times) in radians;
    ahead: (2, people, times) unit vectors of the headings; stature: (people,) metres."""
    # Single precision is faster; its error is less than a micrometre.
    angles = angles.astype(np.float32, copy=False)
    cos = np.cos(angles)
    sin = np.sin(angles)
    scale = (stature / STATURE).astype(np.float32)
    pose = np.zeros((len(JOINTS), 3, *angles.shape[1:]), np.float32)
    turns: list[Axes] = []
    for joint, parent in enumerate(PARENT):
        turn = _upright(ahead.astype(np.float32)) if joint == 0 else turns[parent]
        for along in np.flatnonzero(OFFSET[joint]):
            pose[joint] += float(OFFSET[joint, along]) * scale[:, None] * turn[along]
        if joint:
            pose[joint] += pose[parent]
        for d, (_, where, axis, sign) in enumerate(DOFS):
            if where == joint:
                turn = _turned(turn, axis, cos[d], sign * sin[d])
        turns.append(turn)
    return Motion(pose, np.zeros(pose.shape[1:]), tuple(turns), scale)


def standing_on(left: Array, right: Array) -> Array:
    """Returns the height of the pelvis if the longer leg carries it. `left` and `right` are the
    distances of the ankles below the pelvis in metres. The maximum is smooth where the feet
    change."""
    soft = 0.06  # metres of difference within which both legs carry
    return np.asarray((left + right + np.sqrt((left - right) ** 2 + soft**2) - soft) / 2)


def _upright(ahead: Array) -> Axes:
    """Returns the axes of upright bodies with the heading `ahead`."""
    x, y, z = np.zeros((3, 3, *ahead.shape[1:]), np.float32)
    x[:2] = ahead
    y[0] = -ahead[1]
    y[1] = ahead[0]
    z[2] = 1
    return x, y, z


def _turned(turn: Axes, axis: int, cos: Array, sin: Array) -> Axes:
    """Returns the axes after a rotation about one of them."""
    i = (axis + 1) % 3
    j = (axis + 2) % 3
    new = list(turn)
    new[i] = cos * turn[i] + sin * turn[j]
    new[j] = cos * turn[j] - sin * turn[i]
    return new[0], new[1], new[2]
