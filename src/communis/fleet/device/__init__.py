"""Devices: profiles, the cost of training, and the clock that turns it into seconds and joules."""

from communis.fleet.device.clock import Clock, ClockConfig, FullModel, Spent, Used
from communis.fleet.device.profiles import (
    PRESETS,
    DeviceProfile,
    find,
    load,
    of_fleet,
    without_source,
    write,
)

__all__ = [
    "PRESETS",
    "Clock",
    "ClockConfig",
    "DeviceProfile",
    "FullModel",
    "Spent",
    "Used",
    "find",
    "load",
    "of_fleet",
    "without_source",
    "write",
]
