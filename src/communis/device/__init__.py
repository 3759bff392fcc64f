"""Devices: profiles, what training costs, and the clock that turns it into seconds and joules."""

from communis.device.clock import Clock, ClockConfig, Spent, Used, Whole
from communis.device.flops import Cost, Meter, forward_flops
from communis.device.profiles import PRESETS, DeviceProfile, find, load, of_fleet, told, write

__all__ = [
    "PRESETS",
    "Clock",
    "ClockConfig",
    "Cost",
    "DeviceProfile",
    "Meter",
    "Spent",
    "Used",
    "Whole",
    "find",
    "forward_flops",
    "load",
    "of_fleet",
    "told",
    "write",
]
