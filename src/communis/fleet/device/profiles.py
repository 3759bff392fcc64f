"""Device profiles: the computing speed, power and link rate of a client's device.

Roles assign a device to clients by the name of its profile. Presets come from RELIEF; measured
profiles are read from a TOML file in which every table is a profile:

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

import json
import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from communis.core.disk import regular, replace_file
from communis.core.errors import CommunisError, plain
from communis.core.plugins import nearest


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
    """Returns a profile after RELIEF. Idle power is a fifth of the active power, as in the paper.
    Radio power, 0.6 of the active power (8 of 13 W in its power trace), and 20 Mbit/s are assumed.
    TOPS are nominal: only their ratios are meaningful until they are scaled to a measured time."""
    source = f"RELIEF: {what}; nominal TOPS, radio power and link rate assumed"
    return DeviceProfile(name, tops * 1e12, watts, 0.2 * watts, 0.6 * watts, 20e6, 20e6, source)


def _gap(gap: int) -> tuple[DeviceProfile, DeviceProfile]:
    """Returns the two slower profiles of a fleet whose slowest device is `gap` times slower than
    its fastest. RELIEF's own fleet has a gap of 55: 275, 21 and 5 TOPS."""
    # The position of the middle device between the others on a logarithmic scale: 0.642.
    position = math.log(275 / 21) / math.log(55)
    return (
        _relief(
            f"relief-mid-{gap}x",
            275 / gap**position,
            30,
            f"a compute gap of {gap}x, for which the paper gives no middle device: it keeps its "
            "place between the others on a logarithmic scale",
        ),
        _relief(f"relief-low-{gap}x", 275 / gap, 5, f"low end at a compute gap of {gap}x, 5 W"),
    )


PRESETS: Mapping[str, DeviceProfile] = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            _relief("relief-full", 275, 60, "Jetson AGX Orin level, 60 W"),
            _relief("relief-mid", 21, 30, "Xavier NX level, 30 W"),
            _relief("relief-low", 5, 5, "low-end IoT level, 5 W"),
            _relief("relief-low-testbed", 5, 15, "low-end IoT level at the testbed's 15 W"),
            *_gap(10),
            *_gap(100),
        )
    }
)


def find(name: str, measured: Mapping[str, DeviceProfile] = MappingProxyType({})) -> DeviceProfile:
    """Returns the profile of that name; a measured one has precedence over a preset."""
    known = {**PRESETS, **measured}
    if name not in known:
        hint = nearest(name, list(known))
        raise CommunisError(f"no device profile {name!r}{hint}; there are {', '.join(known)}")
    return known[name]


def of_fleet(
    devices: Sequence[str], measured: Mapping[str, DeviceProfile] = MappingProxyType({})
) -> dict[str, DeviceProfile]:
    """Returns the profiles of a fleet by name, from the device of every client; empty if no client
    has a device. The clock needs a device for every client or for none."""
    without = [client for client, name in enumerate(devices) if not name]
    if len(without) == len(devices):
        return {}
    if without:
        clients = ", ".join(map(str, without))
        raise CommunisError(
            f"clients {clients} have no device profile, but others have one: give every role a "
            "device, or none"
        )
    return {name: find(name, measured) for name in sorted(set(devices))}


def without_source(profiles: Mapping[str, DeviceProfile]) -> dict[str, dict[str, Any]]:
    """Returns the contents of profiles without their source, which affects no result."""
    contents = {}
    for name, profile in sorted(profiles.items()):
        contents[name] = asdict(profile)
        del contents[name]["source"]
    return contents


def load(path: Path) -> dict[str, DeviceProfile]:
    """Returns the profiles of a TOML file by name."""
    try:
        text = regular(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommunisError(f"{path}: cannot be read: {plain(error)}") from None
    return _parsed(text, path)


def write(path: Path, profile: DeviceProfile) -> bool:
    """Adds the profile to a TOML file, or replaces the one of that name (then it returns True).
    Other profiles stay, and comments too if every profile is a [table]."""
    known = load(path) if path.exists() else {}
    wanted = {**known, profile.name: profile}
    head, tail = _around(path.read_text("utf-8") if path.exists() else "", profile.name)
    text = head + _table(profile) + tail
    if not _holds(text, wanted):  # the file is written in a way that cannot be patched by lines
        text = "\n".join(map(_table, wanted.values()))
    replace_file(path, text.encode())
    return profile.name in known


def _parsed(text: str, path: Path) -> dict[str, DeviceProfile]:
    try:
        tables = tomllib.loads(text)
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


def _table(profile: DeviceProfile) -> str:
    bare = re.fullmatch(r"[A-Za-z0-9_-]+", profile.name)
    lines = [f"[{profile.name if bare else _quoted(profile.name)}]"]
    for f in fields(DeviceProfile)[1:]:
        value = getattr(profile, f.name)
        lines.append(f"{f.name} = {_quoted(value) if f.name == 'source' else repr(float(value))}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _around(text: str, name: str) -> tuple[str, str]:
    """Returns the text before and after the table of that name; without such a table, all text is
    before. Comments above the next table belong to the next table."""
    lines = text.splitlines()
    starts = {i: _named(line) for i, line in enumerate(lines) if line.lstrip().startswith("[")}
    begin = next((i for i, table in starts.items() if table == name), len(lines))
    end = min((i for i in starts if i > begin), default=len(lines))
    while end > begin + 1 and not lines[end - 1].partition("#")[0].strip():
        end -= 1
    if lines and begin == len(lines):  # a new table at the end, after an empty line
        lines.append("")
        begin = end = len(lines)
    before = "".join(f"{line}\n" for line in lines[:begin])
    after = "".join(f"{line}\n" for line in lines[end:])
    return before, after


def _named(line: str) -> str:
    """Returns the name in the header of a table; empty if the line is not a header."""
    try:
        return next(iter(tomllib.loads(line)), "")
    except tomllib.TOMLDecodeError:
        return ""


def _holds(text: str, wanted: Mapping[str, DeviceProfile]) -> bool:
    """Whether the text is a valid file of exactly these profiles."""
    try:
        return _parsed(text, Path()) == wanted
    except CommunisError:
        return False
