"""Devices: profiles, what training costs, and the clock that turns it into seconds and joules."""

from communis.fleet.device.clock import Clock, ClockConfig, Spent, Used, Whole
from communis.fleet.device.profiles import PRESETS, DeviceProfile, find, load, of_fleet, told, write

__all__ = [
    "PRESETS",
    "Clock",
    "ClockConfig",
    "DeviceProfile",
    "Spent",
    "Used",
    "Whole",
    "find",
    "load",
    "of_fleet",
    "told",
    "write",
]
