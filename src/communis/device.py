"""Device profiles: how fast a client computes, what power it draws and how fast its link is.

Roles couple sensors with devices by a profile's name. Presets come from RELIEF; measured profiles
are read from a TOML file in which every table is a profile:

    [my-watch]
    flops = 2.1e9           # FLOP/s reached in training
    power_active = 1.2      # W
    power_idle = 0.1
    power_radio = 0.8
    up = 4e6                # bit/s
    down = 10e6
    source = "bench of 3 May"
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from communis.core import CommunisError
from communis.plugins import nearest


@dataclass(frozen=True)
class DeviceProfile:
    name: str
    flops: float  # FLOP/s that training reaches
    power_active: float  # W while it computes
    power_idle: float  # W while it waits
    power_radio: float  # W while it sends or receives
    up: float  # bit/s from the client
    down: float  # bit/s to the client
    source: str = ""  # where the numbers come from

    def __post_init__(self) -> None:
        if not self.name:
            raise CommunisError("a device profile needs a name")
        for name in ("flops", "power_active", "up", "down"):
            if not 0 < getattr(self, name) < math.inf:
                raise CommunisError(
                    f"device {self.name}: {name} must be positive, got {getattr(self, name)}"
                )
        for name in ("power_idle", "power_radio"):
            if not 0 <= getattr(self, name) < math.inf:
                raise CommunisError(
                    f"device {self.name}: {name} must be 0 or more, got {getattr(self, name)}"
                )


def _relief(name: str, tops: float, watts: float, what: str) -> DeviceProfile:
    """Idle power is a fifth of the active one, as in RELIEF. Radio power is .6 of it (8 of 13 W in
    its power trace) and 20 Mbit/s are assumed. TOPS are nominal: only their ratios mean anything
    until they are scaled to a measured time."""
    source = f"RELIEF: {what}; nominal TOPS, radio power and link rate assumed"
    return DeviceProfile(name, tops * 1e12, watts, 0.2 * watts, 0.6 * watts, 20e6, 20e6, source)


PRESETS: Mapping[str, DeviceProfile] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            _relief("relief-full", 275, 60, "Jetson AGX Orin level, 60 W"),
            _relief("relief-mid", 21, 30, "Xavier NX level, 30 W"),
            _relief("relief-low", 5, 5, "low-end IoT level, 5 W"),
            _relief("relief-low-testbed", 5, 15, "low-end IoT level at the testbed's 15 W"),
        )
    }
)


def find(name: str, measured: Mapping[str, DeviceProfile] = MappingProxyType({})) -> DeviceProfile:
    """The profile of that name; a measured one goes before a preset."""
    known = {**PRESETS, **measured}
    if name not in known:
        hint = nearest(name, list(known))
        raise CommunisError(f"no device profile {name!r}{hint}; there are {', '.join(known)}")
    return known[name]


def load(path: Path) -> dict[str, DeviceProfile]:
    """The profiles of a TOML file by name."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise CommunisError(f"{path}: cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise CommunisError(f"{path}: not valid TOML: {error}") from None
    return {name: _profile(name, table, path) for name, table in tables.items()}


def _profile(name: str, table: Any, path: Path) -> DeviceProfile:
    if not isinstance(table, dict):
        raise CommunisError(f"{path}: {name} stands outside a table; every profile is a [table]")
    numbers = [f.name for f in fields(DeviceProfile) if f.name not in ("name", "source")]
    for key, value in table.items():
        if key not in (*numbers, "source"):
            hint = nearest(key, [*numbers, "source"])
            options = ", ".join([*numbers, "source"])
            raise CommunisError(f"{path}: unknown key {name}.{key}{hint}; there are {options}")
        expected: tuple[type, ...] = (str,) if key == "source" else (int, float)
        if type(value) not in expected:
            words = "text" if key == "source" else "a number"
            raise CommunisError(f"{path}: {name}.{key}: expected {words}, got {value!r}")
    missing = [key for key in numbers if key not in table]
    if missing:
        raise CommunisError(f"{path}: [{name}] lacks {', '.join(missing)}")
    try:
        values = {key: float(table[key]) for key in numbers}
        return DeviceProfile(name, **values, source=table.get("source", ""))
    except CommunisError as error:
        raise CommunisError(f"{path}: {error}") from None
