"""People: who does what, where and how, and where that brings their joints.

Habits last for a person's life; a trial draws place, heading, phase and small variations. Both are
arrays over people, so that a whole timeline moves at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from communis.data.world.actions import ACTIONS, HARMONICS, RISE, table
from communis.data.world.body import ANKLE, AT, DOF, STATURE, Array, Motion, forward, standing_on
from communis.data.world.rooms import MARGIN, Room

MOMENTS = 32  # of a cycle, at which a body is looked at to find how far it reaches and strides
TOUCH = 0.02  # metres above the floor within which a foot treads on it


@dataclass(frozen=True)
class Habits:
    """What distinguishes people; the last axis counts them."""

    stature: Array  # (P,) metres
    tempo: Array  # (P,) factor
    vigour: Array  # (19, P) factor of every swing
    lag: Array  # (19, P) radians by which a joint follows
    posture: Array  # (19, P) radians on top of every offset

    def take(self, rows: Array) -> Habits:
        return Habits(**{f.name: getattr(self, f.name)[..., rows] for f in fields(self)})


def habits(rng: np.random.Generator, people: int, shift: float) -> Habits:
    """People who differ by `shift`; 0: all alike."""
    own = shift * rng.standard_normal((2, people)).clip(-2, 2)
    joints = shift * rng.standard_normal((3, RISE + 1, people)).clip(-2, 2)
    # A knee goes with its hip, and the left side is much like the right one: few people limp.
    pairs = [("hip_r", "knee_r"), *((name, f"{name[:-2]}_l") for name in DOF if name[-2:] == "_r")]
    for leader, follower in pairs:
        if follower in DOF:
            joints[:, DOF[follower]] *= 0.3
            joints[:, DOF[follower]] += 0.95 * joints[:, DOF[leader]]
    joints[1:, RISE] = 0  # nobody floats, and all jump when their legs do
    for side in "rl":
        for name in (f"hip_{side}", f"knee_{side}"):
            joints[0, DOF[name]] *= 0.5  # strides differ less than gestures
        # Who leans or bends the knees keeps the feet below the body.
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
    """Rows: each a person during one window. The last axis counts rows."""

    stature: Array  # (R,)
    tempo: Array  # (R,) cycles per second
    offset: Array  # (19, R)
    swing: Array  # (3, 19, R) complex
    phase: Array  # (R,) at the start of the trial
    centre: Array  # (2, R): where the feet are, or the middle of the round
    radius: Array  # (R,) of the round in metres; 0: stays
    pace: Array  # (R,) rad/s along the round
    along: Array  # (R,) radians on the round at the start of the trial
    heading: Array  # (R,) at the start of the trial, of those who stay
    spin: Array  # (R,) rad/s
    clock: Array  # (R,) seconds into the trial at which the window starts

    def take(self, rows: Array) -> People:
        return People(**{f.name: getattr(self, f.name)[..., rows] for f in fields(self)})

    def at(self, times: Array) -> Motion:
        """Their bodies at times (T,), seconds from the start of each one's window."""
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
        right, left = body.pose[AT["right_ankle"]], body.pose[AT["left_ankle"]]
        feet = np.where((self.radius > 0)[:, None], 0.0, (right[:2] + left[:2]) / 2)
        height = standing_on(-left[2], -right[2]) + angles[RISE] + ANKLE * body.scale[:, None]
        return replace(body, root=np.concatenate([path - feet, height[None]]))

    def _round(self, clock: Array) -> tuple[Array, Array]:
        """Position (2, R, T) and unit heading (2, R, T)."""
        angle = self.along[:, None] + self.pace[:, None] * clock
        cos, sin = np.cos(angle), np.sin(angle)
        path = self.centre[..., None] + self.radius[:, None] * np.stack([cos, sin])
        heading = self.heading[:, None] + self.spin[:, None] * clock
        staying = np.stack([np.cos(heading), np.sin(heading)])
        way = np.sign(self.pace)[:, None] * np.stack([-sin, cos])
        return path, np.where((self.radius > 0)[:, None], way, staying)


def people(
    rng: np.random.Generator, action: Array, who: Habits, room: Room, variation: float = 0.04
) -> People:
    """A row per trial: person i of `who` does action[i], at a place and phase of its own."""
    n = len(action)
    place, share, turn = rng.random((2, n)), rng.uniform(0.75, 1.0, n), rng.random((4, n))
    vary = np.exp(variation * rng.standard_normal((2, n)))
    offsets, swings = table()
    swing = swings[:, action].transpose(0, 2, 1) * who.vigour * vary[0]
    swing = swing * np.exp(-1j * np.arange(1, HARMONICS + 1)[:, None, None] * who.lag)
    side = np.where(turn[0] < 0.5, -1, 1)  # clockwise or not
    there = People(
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
    cycle = replace(there, tempo=np.ones(n), spin=np.zeros(n)).at(np.arange(MOMENTS) / MOMENTS)
    reach = cycle.joints[:, :2]
    stays = room.floor(place, reach.min((0, 3)), reach.max((0, 3)))
    # Those who go round use most of the floor; the rest of it is where the round may lie.
    half = room.size[:2, None] / 2 - MARGIN
    radius = share * half.min()
    travels = np.array([a.travels for a in ACTIONS])[action]
    speed = stride(cycle, there.heading) * there.tempo
    return replace(
        there,
        centre=np.where(
            travels, room.size[:2, None] / 2 + (2 * place - 1) * (half - radius), stays
        ),
        radius=np.where(travels, radius, 0.0),
        pace=np.where(travels, side * speed / radius, 0.0),
    )


def stride(cycle: Motion, heading: Array) -> Array:
    """(P,) metres that bodies get ahead in a cycle if the feet that tread slide as little as they
    can: so fast do these feet go back, on average, as seen from the pelvis."""
    ankles = cycle.pose[[AT["left_ankle"], AT["right_ankle"]]]
    ahead = ankles[:, 0] * np.cos(heading)[:, None] + ankles[:, 1] * np.sin(heading)[:, None]
    back = (ahead - np.roll(ahead, -1, -1)) * ahead.shape[-1]
    height = ankles[:, 2] + cycle.root[2] - ANKLE * cycle.scale[:, None]
    height = (height + np.roll(height, -1, -1)) / 2
    treads = np.exp(-((np.maximum(height, 0) / TOUCH) ** 2))
    return np.asarray((treads * back).sum((0, 2)) / treads.sum((0, 2)))


@dataclass(frozen=True)
class Crowd:
    """Everybody who is seen in some windows."""

    windows: int
    members: tuple[tuple[Array, People], ...]  # the windows in which a person is there, and as who

    @property
    def count(self) -> Array:
        """(windows,) int64"""
        rows = [rows for rows, _ in self.members]
        return np.bincount(np.concatenate([*rows, np.zeros(0, np.int64)]), minlength=self.windows)

    def part(self, begin: int, end: int) -> Crowd:
        """The windows from `begin` to `end`, counted anew from 0."""
        found = []
        for rows, who in self.members:
            here = np.flatnonzero((rows >= begin) & (rows < end))
            if len(here):
                found.append((rows[here] - begin, who.take(here)))
        return Crowd(end - begin, tuple(found))
