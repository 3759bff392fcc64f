"""Devices: profiles, the cost of training, and the clock that turns it into seconds and joules."""

from communis.fleet.device.clock import Clock, ClockConfig, DeviceCost, FullModel, Used
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
    "DeviceCost",
    "DeviceProfile",
    "FullModel",
    "Used",
    "find",
    "load",
    "of_fleet",
    "without_source",
    "write",
]
