"""Actions: periodic joint angles of people.

An angle over the phase p of an action is  offset + first cos(p - a) + second cos(2p - b) +
third cos(3p - c),  in degrees. `rise` lifts the body off the floor, in metres. The values come from
observation of moving bodies, not from measurements; those of the hips and knees of walkers and
runners are fitted so that a foot on the floor moves back at a constant speed relative to the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from communis.data.world.body import DOF, DOFS, Array

Wave = tuple[float, ...]  # offset, first, a, second, b, third, c; missing values are zero
HARMONICS = 3


@dataclass(frozen=True)
class Action:
    """One action as periodic joint angles."""

    name: str
    tempo: float  # cycles per second
    effort: float  # final heart rate above rest, in beats per minute
    waves: Mapping[str, Wave]  # by degree of freedom
    travels: bool = False  # whether people walk on a circle in the room; false: the feet stay
    spin: float = 0.0  # rad/s about the vertical


def _both(name: str, *wave: float) -> dict[str, Wave]:
    """Returns the same wave for left and right."""
    return {f"{name}_r": wave, f"{name}_l": wave}


def _alternating(name: str, *wave: float) -> dict[str, Wave]:
    """Returns waves of which the left one is half a cycle after the right one."""
    offset, first, a, second, b, third, c = (*wave, *(0.0,) * 6)[:7]
    return {f"{name}_r": wave, f"{name}_l": (offset, first, a + 180, second, b, third, c + 180)}


def _level_legs(degrees: float, a: float) -> dict[str, Wave]:
    """Returns waves for a pelvis that sways while the legs stay in their planes."""
    wave = (0.0, degrees, a)
    return {"sway": wave, "spread_r": wave, "spread_l": (0.0, degrees, a + 180)}


ACTIONS = (
    Action(
        "standing", 0.25, 8,
        {"lean": (1, 1), "sway": (0, 1, 90), **_both("lift", 6), **_both("elbow", 10, 1)},
    ),
    Action(
        "walking", 0.9, 35,
        {
            **_alternating("hip", 10.6, 24, 0, 5.7, 261, 1.9, 197),
            **_alternating("knee", 20.1, 24.1, 281, 14.5, 192, 3.9, 148),
            **_alternating("shoulder", 0, 20, 180), **_both("lift", 5),
            **_alternating("elbow", 22, 9, 180), "twist": (0, 2, 180), "counter": (0, 9),
            "bend": (3, 0, 0, 1.5, 40), **_level_legs(2, 90),
        },
        travels=True,
    ),
    Action(
        "running", 1.45, 85,
        {
            **_alternating("hip", 17.9, 34.6, 0, 2.1, 182, 1.3, 129),
            **_alternating("knee", 44.7, 17.5, 294, 15.6, 136, 2.7, 116),
            **_alternating("shoulder", -8, 32, 180), **_both("lift", 8),
            **_alternating("elbow", 85, 15, 180), "twist": (0, 3, 180), "counter": (0, 14),
            "bend": (9, 0, 0, 2, 40), **_level_legs(2, 90), "rise": (0.033, 0, 0, 0.033, 30),
        },
        travels=True,
    ),
    Action(
        "sitting", 0.22, 18,  # down and up again
        {
            **_both("hip", 60, 45, 180, 15, 180), **_both("knee", 45, 45, 180),
            "lean": (15, 0, 0, 15, 180), **_both("shoulder", 18, 12, 180), **_both("elbow", 35, 15),
        },
    ),
    Action(
        "squatting", 0.45, 55,
        {
            **_both("hip", 45, 45, 180), **_both("knee", 55, 55, 180), "lean": (15, 15, 180),
            **_both("shoulder", 45, 40, 180), **_both("spread", 8, 4, 180), **_both("elbow", 8),
        },
    ),
    Action(
        "waving", 1.1, 12,
        {
            "lift_r": (80, 6), "wave_r": (85, 32), "sway": (0, 1.5, 20), "counter": (2, 2),
            "lift_l": (6,), "elbow_l": (10,),
        },
    ),
    Action(
        "jumping", 0.85, 75,  # jumping jacks
        {
            **_both("lift", 78, 68, 180), **_both("spread", 15, 13, 180), **_both("elbow", 10),
            **_both("hip", 8, 0, 0, 8), **_both("knee", 16, 0, 0, 15),
            "rise": (0.05, 0, 0, 0.05, 180),
        },
    ),
    Action(
        "bowing", 0.3, 15,
        {
            "lean": (32, 32, 180), **_both("hip", 32, 32, 180), "bend": (10, 10, 180),
            **_both("shoulder", 20, 20, 180),
        },
    ),
    Action(
        "turning", 0.8, 20,
        {
            **_alternating("hip", 8, 10), **_alternating("knee", 16, 14, 250),
            **_alternating("shoulder", 0, 8, 180), **_both("lift", 8), **_both("elbow", 15),
        },
        spin=1.2,
    ),
)  # fmt: skip
NAMES = tuple(action.name for action in ACTIONS)
RISE = len(DOFS)  # index of `rise` after the angles


def table() -> tuple[Array, Array]:
    """Returns offset (actions, 19) and complex swing (3, actions, 19), in radians and metres. An
    angle is offset + Re(swing[0] z + swing[1] z² + swing[2] z³) with z = exp(i phase)."""
    waves = np.zeros((len(ACTIONS), RISE + 1, 1 + 2 * HARMONICS))
    for row, action in enumerate(ACTIONS):
        for name, wave in action.waves.items():
            waves[row, DOF.get(name, RISE), : len(wave)] = wave
    unit = np.where(np.arange(RISE + 1) == RISE, 1.0, np.pi / 180)
    swing = waves[..., 1::2] * np.exp(-1j * np.radians(waves[..., 2::2]))
    return waves[..., 0] * unit, np.moveaxis(swing, 2, 0) * unit
