"""Opportunity: 4 people at breakfast, 12 accelerometers and 7 inertial units on the body at 30 Hz.

Roggen et al., INSS 2010; Chavarriaga et al., Pattern Recognition Letters 2013. One text file per
person and run (five of daily life, one drill), 250 columns separated by spaces: time (ms), 133 of
sensors on the body, 109 of sensors in objects and in the room, which are not read, and 7 of labels.
Values that sensors failed to deliver, for seconds or for a complete run, are NaN and stay NaN.

The owner gives acceleration in thousandths of g; it is divided by 1000, so that the unit is g. The
owner states no unit for rotation and magnetic field of the inertial units, and no plausible unit
for the rotation of the shoes: they are unchanged, in arbitrary units. Of the shoes, acceleration
and rotation in the frame of the shoe are read; of the other units everything except the
quaternions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.tasks import Classification
from communis.data.recordings.about import About, Download
from communis.data.recordings.columns import chosen, classes, steps
from communis.data.recordings.files import matching, numbers
from communis.data.recordings.recording import UNLABELLED, Dataset, Recording, Stream
from communis.data.recordings.source import Recorded
from communis.data.recordings.splits import SplitKind

ABOUT = About(
    licence="CC BY 4.0",
    citation="Chavarriaga et al. 2013, doi:10.1016/j.patrec.2012.12.014; data: doi:10.24432/C5M027",
    address="https://archive.ics.uci.edu/dataset/226/opportunity+activity+recognition",
    files="OpportunityUCIDataset/dataset/S?-*.dat",
    count=24,
    downloads=(
        Download(
            "https://archive.ics.uci.edu/static/public/226/opportunity+activity+recognition.zip"
        ),
    ),
)
ACCELEROMETERS = (  # RKN^, HIP, LUA^, RUA_, LH, BACK, RKN_, RWR, RUA^, LUA_, LWR, RH
    "rkn_upper",
    "hip",
    "lua_upper",
    "rua_lower",
    "lh",
    "back",
    "rkn_lower",
    "rwr",
    "rua_upper",
    "lua_lower",
    "lwr",
    "rh",
)
INERTIAL_UNITS = ("imu_back", "imu_rua", "imu_rla", "imu_lua", "imu_lla")
SHOES = ("l_shoe", "r_shoe")


def _sensors() -> dict[str, dict[str, int]]:
    """Returns the first of the three columns of each sensor, by site and sensor."""
    sensors = {}
    for n, site in enumerate(ACCELEROMETERS):
        sensors[site] = {"acc": 1 + 3 * n}
    for n, site in enumerate(INERTIAL_UNITS):
        sensors[site] = {"acc": 37 + 13 * n, "gyro": 40 + 13 * n, "mag": 43 + 13 * n}
    for n, site in enumerate(SHOES):
        sensors[site] = {"acc": 108 + 16 * n, "gyro": 111 + 16 * n}
    return sensors


SENSORS = _sensors()
UNITS = {"acc": "g", "gyro": "a.u.", "mag": "a.u."}
LOCOMOTION = {1: "stand", 2: "walk", 4: "sit", 5: "lie"}
ACTIVITIES = {
    101: "relaxing",
    102: "coffee time",
    103: "early morning",
    104: "cleanup",
    105: "sandwich time",
}
GESTURES = {
    406516: "open door 1",
    406517: "open door 2",
    404516: "close door 1",
    404517: "close door 2",
    406520: "open fridge",
    404520: "close fridge",
    406505: "open dishwasher",
    404505: "close dishwasher",
    406519: "open drawer 1",
    404519: "close drawer 1",
    406511: "open drawer 2",
    404511: "close drawer 2",
    406508: "open drawer 3",
    404508: "close drawer 3",
    408512: "clean table",
    407521: "drink from cup",
    405506: "toggle switch",
}
TARGETS = {  # column, names by code
    "locomotion": (243, LOCOMOTION),
    "activities": (244, ACTIVITIES),
    "gestures": (249, GESTURES),
}
LABELS = tuple(LOCOMOTION.values())
RUNS = ("Drill", "ADL1", "ADL2", "ADL3", "ADL4", "ADL5")  # sessions 0 to 5
RATE = 30.0


@dataclass(frozen=True)
class Opportunity(Recorded):
    """Settings of `[data] name = "opportunity"`."""

    split: SplitKind = "session"  # unit that is never in training and test at once
    target: Literal["locomotion", "gestures", "activities"] = "locomotion"  # labels to predict
    null: bool = False  # whether time without a class is the last class; false: it is left out
    sites: tuple[str, ...] = ()  # sites to read, such as hip, imu_back, l_shoe; empty: all 19
    runs: tuple[int, ...] = ()  # runs to read: 1 to 5: daily life, 0: drill; empty: all

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen("sites", self.sites, SENSORS)
        chosen("runs", self.runs, range(len(RUNS)))

    def read(self, folder: Path) -> Dataset:
        _, codes = TARGETS[self.target]
        names = tuple(codes.values())
        if self.null:
            names = (*names, "null")
        units = {m: UNITS[m.rpartition("_")[2]] for m in self._columns()}
        return Dataset(self._recordings(folder), Classification(len(names)), names, units)

    def _columns(self) -> dict[Modality, slice]:
        by_modality = {}
        for site in chosen("sites", self.sites, SENSORS):
            for sensor, first in SENSORS[site].items():
                by_modality[f"{site}_{sensor}"] = slice(first, first + 3)
        return by_modality

    def _recordings(self, folder: Path) -> Iterator[Recording]:
        column, codes = TARGETS[self.target]
        null = len(codes) if self.null else UNLABELLED
        class_of = {0: null} | {code: n for n, code in enumerate(codes)}
        wanted = chosen("runs", self.runs, range(len(RUNS)))
        count = 0
        for path in matching(folder, ABOUT.files):
            name = re.fullmatch(rf"S([1-4])-({'|'.join(RUNS)})", path.stem)
            if not name:
                raise CommunisError(
                    f"{path}: expected S1-ADL1.dat to S4-ADL5.dat, S1-Drill.dat, ..."
                )
            session = RUNS.index(name[2])
            if session not in wanted:
                continue
            rows = numbers(path, 250)
            step = steps(path, rows[:, 0].astype(np.float64) / 1000, RATE)
            target = np.full(step[-1] + 1, UNLABELLED)
            target[step] = classes(path, rows[:, column], class_of)
            sensed = np.full((len(target), 134), np.nan, np.float32)
            sensed[step] = rows[:, :134]
            count += 1
            yield Recording(
                {m: _stream(m, sensed[:, columns]) for m, columns in self._columns().items()},
                Stream(target, RATE),
                int(name[1]),
                session=session,
                name=path.relative_to(folder).as_posix(),
            )
        if not count:
            listed = ", ".join(RUNS[run] for run in wanted)
            raise CommunisError(f"{folder}: no file of the runs {listed}")


def _stream(modality: Modality, values: Array) -> Stream:
    """Returns the stream of a modality; accelerations are converted to g."""
    if modality.endswith("_acc"):
        return Stream(values / np.float32(1000), RATE)
    return Stream(values.copy(), RATE)
