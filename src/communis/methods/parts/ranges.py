"""The ranges of the settings of local training. They are apart from `training.py`, because refusals
do without torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from communis.core.errors import CommunisError

Range = tuple[str, Callable[[float], bool]]  # in words, and whether it holds a value
RANGES: Mapping[str, Range] = {
    "lr": ("positive", lambda value: value > 0),
    "epochs": ("at least 0", lambda value: value >= 0),
    "batch": ("at least 1", lambda value: value >= 1),
    "momentum": ("in [0, 1)", lambda value: 0 <= value < 1),
    "weight_decay": ("at least 0", lambda value: value >= 0),
    "max_steps": ("at least 0", lambda value: value >= 0),
    "clip": ("finite and at least 0", lambda value: 0 <= value < math.inf),
}


def refuse_out_of_range(settings: Mapping[str, float]) -> None:
    """Refuses a value that a setting of local training cannot have. Other settings are left to the
    method."""
    for name, (words, holds) in RANGES.items():
        if name in settings and not holds(settings[name]):
            raise CommunisError(f"{name} must be {words}, got {settings[name]}")
