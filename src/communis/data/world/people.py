"""People: their habits, actions and places, and the resulting motion of their joints.

The habits of a person are constant; every trial draws place, heading, phase and small variations.
Both are arrays over people, so that a complete timeline is computed at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from communis.data.world.actions import ACTIONS, HARMONICS, RISE, table
from communis.data.world.body import ANKLE, AT, DOF, STATURE, Array, Motion, forward, standing_on
from communis.data.world.rooms import MARGIN, Room

MOMENTS = 32  # times in a cycle at which reach and stride of a body are measured
TOUCH = 0.02  # metres above the floor below which a foot is on the floor


@dataclass(frozen=True)
class Habits:
    """The differences between people; the last axis is the person."""

    stature: Array  # (P,) metres
    tempo: Array  # (P,) factor
    vigour: Array  # (19, P) factor of every swing
    lag: Array  # (19, P) delay of every joint in radians
    posture: Array  # (19, P) radians that are added to every offset

    def take(self, rows: Array) -> Habits:
        return Habits(**{f.name: getattr(self, f.name)[..., rows] for f in fields(self)})


def habits(rng: np.random.Generator, people: int, shift: float) -> Habits:
    """Draws people who differ by `shift`; 0: all are equal."""
    own = shift * rng.standard_normal((2, people)).clip(-2, 2)
    joints = shift * rng.standard_normal((3, RISE + 1, people)).clip(-2, 2)
    # A knee follows its hip, and the left side is similar to the right one: few people limp.
    right_sides = [name for name in DOF if name.endswith("_r")]
    pairs = [("hip_r", "knee_r")]
    pairs += [(right, f"{right[:-2]}_l") for right in right_sides]
    for leader, follower in pairs:
        if follower in DOF:
            joints[:, DOF[follower]] *= 0.3
            joints[:, DOF[follower]] += 0.95 * joints[:, DOF[leader]]
    joints[1:, RISE] = 0  # nobody floats, and bodies rise in phase with their legs
    for side in "rl":
        for name in (f"hip_{side}", f"knee_{side}"):
            joints[0, DOF[name]] *= 0.5  # strides differ less than gestures
        # The feet of people who lean or bend their knees stay below the body.
        joints[2, DOF[f"hip_{side}"]] = joints[2, DOF["lean"]] + joints[2, DOF[f"knee_{side}"]] / 2
    return Habits(
        stature=np.clip(STATURE + 0.09 * own[0], 1.35, 2.1),
        tempo=np.exp(0.12 * own[1]),
        vigour=np.clip(1 + 0.15 * joints[0], 0.4, 1.6),
        lag=0.2 * joints[1],
        posture=0.06 * joints[2],
    )


@dataclass(frozen=True)
class People:
    """Rows, each a person during one window. The last axis is the row."""

    stature: Array  # (R,)
    tempo: Array  # (R,) cycles per second
    offset: Array  # (19, R)
    swing: Array  # (3, 19, R) complex
    phase: Array  # (R,) at the start of the trial
    centre: Array  # (2, R) position of the feet, or centre of the circle on which the person walks
    radius: Array  # (R,) of the circle in metres; 0: the person stays in one place
    pace: Array  # (R,) rad/s along the circle
    along: Array  # (R,) angle on the circle at the start of the trial
    heading: Array  # (R,) angle at the start of the trial, of people who stay
    spin: Array  # (R,) rad/s
    clock: Array  # (R,) seconds from the start of the trial to that of the window

    def take(self, rows: Array) -> People:
        return People(**{f.name: getattr(self, f.name)[..., rows] for f in fields(self)})

    def at(self, times: Array) -> Motion:
        """Returns their bodies at times (T,), in seconds from the start of each window."""
        clock = self.clock[:, None] + times
        phase = 2 * np.pi * self.tempo[:, None] * clock + self.phase[:, None]
        turn = np.exp(1j * phase).astype(np.complex64)
        swing = self.swing.astype(np.complex64)[..., None]
        angles = swing[0].real * turn.real - swing[0].imag * turn.imag
        angles += self.offset.astype(np.float32)[..., None]
        power = turn
        for k in range(1, HARMONICS):
            power = power * turn
            for d in np.flatnonzero(self.swing[k].any(1)):
                angles[d] += (swing[k, d] * power).real
        path, ahead = self._round(clock)
        body = forward(angles[:RISE], ahead, self.stature)
        right = body.pose[AT["right_ankle"]]
        left = body.pose[AT["left_ankle"]]
        feet = np.where((self.radius > 0)[:, None], 0.0, (right[:2] + left[:2]) / 2)
        height = standing_on(-left[2], -right[2]) + angles[RISE] + ANKLE * body.scale[:, None]
        return replace(body, root=np.concatenate([path - feet, height[None]]))

    def _round(self, clock: Array) -> tuple[Array, Array]:
        """Returns positions (2, R, T) and unit headings (2, R, T)."""
        angle = self.along[:, None] + self.pace[:, None] * clock
        cos = np.cos(angle)
        sin = np.sin(angle)
        path = self.centre[..., None] + self.radius[:, None] * np.stack([cos, sin])
        heading = self.heading[:, None] + self.spin[:, None] * clock
        staying = np.stack([np.cos(heading), np.sin(heading)])
        walking = np.sign(self.pace)[:, None] * np.stack([-sin, cos])
        return path, np.where((self.radius > 0)[:, None], walking, staying)


def people(
    rng: np.random.Generator, action: Array, who: Habits, room: Room, variation: float = 0.04
) -> People:
    """Returns a row per trial: person i of `who` does action[i], at its own place and phase."""
    n = len(action)
    place = rng.random((2, n))
    share = rng.uniform(0.75, 1.0, n)
    turn = rng.random((4, n))
    vary = np.exp(variation * rng.standard_normal((2, n)))
    offsets, swings = table()
    swing = swings[:, action].transpose(0, 2, 1) * who.vigour * vary[0]
    swing = swing * np.exp(-1j * np.arange(1, HARMONICS + 1)[:, None, None] * who.lag)
    side = np.where(turn[0] < 0.5, -1, 1)  # clockwise or not
    staying = People(
        stature=who.stature,
        tempo=np.array([a.tempo for a in ACTIONS])[action] * who.tempo * vary[1],
        offset=offsets[action].T + who.posture,
        swing=swing,
        phase=2 * np.pi * turn[1],
        centre=np.zeros((2, n)),
        radius=np.zeros(n),
        pace=np.zeros(n),
        along=2 * np.pi * turn[2],
        heading=2 * np.pi * turn[3],
        spin=np.array([a.spin for a in ACTIONS])[action] * who.tempo * side,
        clock=np.zeros(n),
    )
    in_place = replace(staying, tempo=np.ones(n), spin=np.zeros(n))
    cycle = in_place.at(np.arange(MOMENTS) / MOMENTS)
    reach = cycle.joints[:, :2]
    stands = room.floor(place, reach.min((0, 3)), reach.max((0, 3)))
    # A circle covers most of the floor; its centre is drawn from the positions that remain.
    half = room.size[:2, None] / 2 - MARGIN
    radius = share * half.min()
    circle = room.size[:2, None] / 2 + (2 * place - 1) * (half - radius)
    travels = np.array([a.travels for a in ACTIONS])[action]
    speed = stride(cycle, staying.heading) * staying.tempo
    return replace(
        staying,
        centre=np.where(travels, circle, stands),
        radius=np.where(travels, radius, 0.0),
        pace=np.where(travels, side * speed / radius, 0.0),
    )


def stride(cycle: Motion, heading: Array) -> Array:
    """Returns (P,) the metres that bodies advance in a cycle if the feet on the floor slide as
    little as possible: the mean speed at which these feet move back relative to the pelvis."""
    ankles = cycle.pose[[AT["left_ankle"], AT["right_ankle"]]]
    ahead = ankles[:, 0] * np.cos(heading)[:, None] + ankles[:, 1] * np.sin(heading)[:, None]
    back = (ahead - np.roll(ahead, -1, -1)) * ahead.shape[-1]
    height = ankles[:, 2] + cycle.root[2] - ANKLE * cycle.scale[:, None]
    height = (height + np.roll(height, -1, -1)) / 2
    treads = np.exp(-((np.maximum(height, 0) / TOUCH) ** 2))
    return np.asarray((treads * back).sum((0, 2)) / treads.sum((0, 2)))


@dataclass(frozen=True)
class Crowd:
    """All people in a number of windows."""

    windows: int
    members: tuple[tuple[Array, People], ...]  # windows with the person, and a row for each

    @property
    def count(self) -> Array:
        """(windows,) int64: the number of people."""
        rows = [rows for rows, _ in self.members]
        return np.bincount(np.concatenate([*rows, np.zeros(0, np.int64)]), minlength=self.windows)

    def part(self, begin: int, end: int) -> Crowd:
        """Returns the windows from `begin` to `end`, numbered from 0."""
        members = []
        for rows, who in self.members:
            selected = np.flatnonzero((rows >= begin) & (rows < end))
            if len(selected):
                members.append((rows[selected] - begin, who.take(selected)))
        return Crowd(end - begin, tuple(members))
