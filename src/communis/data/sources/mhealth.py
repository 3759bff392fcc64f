"""MHEALTH: 10 people, 12 activities, motion of chest, ankle and arm and a two-lead ECG at 50 Hz.

Banos et al., IWAAL 2014. One text file per person, 24 columns separated by tabs: chest acceleration
(3), ECG (2 leads), acceleration, rotation and magnetic field of the left ankle (3 each) and of the
right lower arm (3 each), and the activity, 0 for none. There is no time column: there are 50 rows
per second. The unit of the magnetic field is stated as "local"; rotation is in degrees per second
according to the owner.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.tasks import Classification
from communis.data.recordings.about import About, Download
from communis.data.recordings.columns import chosen, classes
from communis.data.recordings.files import matching, numbers
from communis.data.recordings.recording import UNLABELLED, Dataset, Recording, Stream
from communis.data.recordings.source import Recorded

ABOUT = About(
    licence="CC BY 4.0",
    citation="Banos et al. 2014, doi:10.1007/978-3-319-13105-4_14; data: doi:10.24432/C5TW22",
    address="https://archive.ics.uci.edu/dataset/319/mhealth+dataset",
    files="MHEALTHDATASET/mHealth_subject*.log",
    count=10,
    downloads=(Download("https://archive.ics.uci.edu/static/public/319/mhealth+dataset.zip"),),
)
LABELS = (
    "standing still",
    "sitting and relaxing",
    "lying down",
    "walking",
    "climbing stairs",
    "waist bends forward",
    "frontal elevation of arms",
    "knees bending",
    "cycling",
    "jogging",
    "running",
    "jump front and back",
)
SITES = ("chest", "ankle", "arm")
UNITS = {"acc": "m/s2", "ecg": "mV", "gyro": "deg/s", "mag": "a.u."}
COLUMNS = {
    ("chest", "acc"): range(3),
    ("chest", "ecg"): range(3, 5),
    ("ankle", "acc"): range(5, 8),
    ("ankle", "gyro"): range(8, 11),
    ("ankle", "mag"): range(11, 14),
    ("arm", "acc"): range(14, 17),
    ("arm", "gyro"): range(17, 20),
    ("arm", "mag"): range(20, 23),
}
RATE = 50.0


@dataclass(frozen=True)
class Mhealth(Recorded):
    """Settings of `[data] name = "mhealth"`."""

    window: float = 2.56  # length of a window in seconds
    sites: tuple[str, ...] = ()  # sites to read: chest, ankle, arm; empty: all
    sensors: tuple[str, ...] = ()  # sensors to read: acc, ecg, gyro, mag; empty: all
    # site: a modality per site and sensor (chest_acc, ...); sensor: one of all sites (acc, ...)
    group: Literal["site", "sensor"] = "site"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self._columns():
            raise CommunisError(
                f"sensors: none of {', '.join(self.sensors)} is at {', '.join(self.sites)}; only "
                "the chest has ecg, and it has no gyro and mag"
            )

    def read(self, folder: Path) -> Dataset:
        units = {m: UNITS[m.rpartition("_")[2]] for m in self._columns()}
        return Dataset(self._recordings(folder), Classification(len(LABELS)), LABELS, units)

    def _columns(self) -> dict[Modality, list[int]]:
        sites = chosen("sites", self.sites, SITES)
        sensors = chosen("sensors", self.sensors, UNITS)
        by_modality: dict[Modality, list[int]] = {}
        for (site, sensor), columns in COLUMNS.items():
            if site in sites and sensor in sensors:
                name = f"{site}_{sensor}" if self.group == "site" else sensor
                by_modality.setdefault(name, []).extend(columns)
        return by_modality

    def _recordings(self, folder: Path) -> Iterator[Recording]:
        class_of = {0: UNLABELLED} | {n + 1: n for n in range(len(LABELS))}
        for path in matching(folder, ABOUT.files):
            number = re.fullmatch(r"mHealth_subject(\d+)", path.stem)
            if not number or not 1 <= int(number[1]) <= ABOUT.count:
                raise CommunisError(f"{path}: expected mHealth_subject1.log to ...10.log")
            rows = numbers(path, 24)
            yield Recording(
                {m: Stream(rows[:, columns], RATE) for m, columns in self._columns().items()},
                Stream(classes(path, rows[:, 23], class_of), RATE),
                int(number[1]),
                name=path.relative_to(folder).as_posix(),
            )
