"""PAMAP2: 9 people, 18 activities, three inertial units at 100 Hz (hand, chest, ankle) and heart
rate.

Reiss & Stricker, ISWC 2012. One text file per person and session, 54 columns: time (s), activity,
heart rate (bpm, about nine readings per second, NaN between them), then 17 columns for each of
hand, chest and ankle: temperature, acceleration in the range of 16 g, acceleration in the range of
6 g, rotation, magnetic field, orientation. The accelerometer of 16 g is read, because the other one
clips and is not calibrated. The orientation is not read, because the owner calls it invalid.
Samples that the radio lost are NaN and stay NaN. Activity 0 is the time between two activities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

ABOUT = About(
    licence="CC BY 4.0",
    citation="Reiss & Stricker 2012, doi:10.1109/ISWC.2012.13; data: doi:10.24432/C5NW2H",
    address="https://archive.ics.uci.edu/dataset/231/pamap2+physical+activity+monitoring",
    files="PAMAP2_Dataset/*/subject10?.dat",
    count=14,
    downloads=(
        Download(
            "https://archive.ics.uci.edu/static/public/231/pamap2+physical+activity+monitoring.zip"
        ),
    ),
    how="The archive holds PAMAP2_Dataset.zip: unpack that one too.",
)
PROTOCOL = {
    1: "lying",
    2: "sitting",
    3: "standing",
    4: "walking",
    5: "running",
    6: "cycling",
    7: "Nordic walking",
    12: "ascending stairs",
    13: "descending stairs",
    16: "vacuum cleaning",
    17: "ironing",
    24: "rope jumping",
}
OPTIONAL = {
    9: "watching TV",
    10: "computer work",
    11: "car driving",
    18: "folding laundry",
    19: "house cleaning",
    20: "playing soccer",
}
LABELS = tuple(PROTOCOL.values())
SITES = {"hand": 3, "chest": 20, "ankle": 37}  # first column
SENSORS = {"acc": 1, "gyro": 7, "mag": 10}  # first of three columns, after the site's first
UNITS = {"acc": "m/s2", "gyro": "rad/s", "mag": "uT", "heart": "bpm"}
SESSIONS = ("Protocol", "Optional")  # folders
SUBJECTS = range(101, 110)
RATE = 100.0
HEART_RATE = 5.0  # Hz: a step is the mean of its one or two readings


@dataclass(frozen=True)
class Pamap2(Recorded):
    """Settings of `[data] name = "pamap2"`."""

    sites: tuple[str, ...] = ()  # sites to read: hand, chest, ankle; empty: all
    sensors: tuple[str, ...] = ()  # sensors to read: acc, gyro, mag, heart; empty: all
    # site: a modality per site and sensor (hand_acc, ...); sensor: one of all sites (acc, ...)
    group: Literal["site", "sensor"] = "site"
    # people to read, 101 to 109; empty: all; 109 did one activity only
    subjects: tuple[int, ...] = ()
    optional: bool = False  # whether to read the six activities that only some people did
    heart_hold: float = 3.0  # seconds, at least 0, for which a heart rate fills missing readings

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen("sites", self.sites, SITES)
        chosen("sensors", self.sensors, UNITS)
        chosen("subjects", self.subjects, SUBJECTS)
        if self.heart_hold < 0:
            raise CommunisError(f"heart_hold must be at least 0 seconds, got {self.heart_hold}")

    def read(self, folder: Path) -> Dataset:
        labels = PROTOCOL | OPTIONAL if self.optional else PROTOCOL
        sensors = chosen("sensors", self.sensors, UNITS)
        units = {m: UNITS[m.rpartition("_")[2]] for m in self._columns()}
        if "heart" in sensors:
            units["heart"] = UNITS["heart"]
        return Dataset(
            self._recordings(folder, labels),
            Classification(len(labels)),
            tuple(labels.values()),
            units,
        )

    def _columns(self) -> dict[Modality, list[int]]:
        by_modality: dict[Modality, list[int]] = {}
        for site in chosen("sites", self.sites, SITES):
            for sensor in chosen("sensors", self.sensors, UNITS):
                if sensor in SENSORS:
                    name = f"{site}_{sensor}" if self.group == "site" else sensor
                    first = SITES[site] + SENSORS[sensor]
                    by_modality.setdefault(name, []).extend(range(first, first + 3))
        return by_modality

    def _recordings(self, folder: Path, labels: Mapping[int, str]) -> Iterator[Recording]:
        class_of = {0: UNLABELLED} | dict.fromkeys(PROTOCOL | OPTIONAL, UNLABELLED)
        class_of |= {code: n for n, code in enumerate(labels)}
        wanted = chosen("subjects", self.subjects, SUBJECTS)
        count = 0
        for path in matching(folder, ABOUT.files):
            subject = _subject(path)
            session = _session(path)
            if subject not in wanted or (session == "Optional" and not self.optional):
                continue
            rows = numbers(path, 54)
            step = steps(path, rows[:, 0].astype(np.float64), RATE)
            target = np.full(step[-1] + 1, UNLABELLED)
            target[step] = classes(path, rows[:, 1], class_of)
            sensed = np.full((len(target), 54), np.nan, np.float32)
            sensed[step] = rows
            streams = {m: Stream(sensed[:, c], RATE) for m, c in self._columns().items()}
            if not self.sensors or "heart" in self.sensors:
                streams["heart"] = heart(sensed[:, 2], self.heart_hold)
            count += 1
            yield Recording(
                streams,
                Stream(target, RATE),
                subject,
                session=SESSIONS.index(session) + 1,
                name=path.relative_to(folder).as_posix(),
            )
        if not count:
            listed = ", ".join(map(str, wanted))
            raise CommunisError(f"{folder}: no Protocol/subject10?.dat of the subjects {listed}")


def heart(readings: Array, hold: float) -> Stream:
    """Returns the heart rate at 5 Hz from readings at 100 Hz that are mostly NaN: the mean of the
    readings in a step; in a step without readings the previous value, if it is at most `hold`
    seconds old."""
    rows = np.flatnonzero(np.isfinite(readings))
    width = int(RATE / HEART_RATE)
    count = -(-len(readings) // width)
    number = np.bincount(rows // width, minlength=count)
    total = np.bincount(rows // width, readings[rows], minlength=count)
    mean = np.divide(total, number, out=np.full(count, np.nan), where=number > 0)
    last = np.maximum.accumulate(np.where(number > 0, np.arange(count), -1))
    fresh = (last >= 0) & (np.arange(count) - last <= hold * HEART_RATE + 1e-6)
    values = np.where(fresh, mean[last], np.nan).astype(np.float32)
    return Stream(values[:, None], HEART_RATE)


def _subject(path: Path) -> int:
    number = path.stem.removeprefix("subject")
    if not number.isdigit() or int(number) not in SUBJECTS:
        raise CommunisError(f"{path}: expected subject101.dat to subject109.dat")
    return int(number)


def _session(path: Path) -> str:
    if path.parent.name not in SESSIONS:
        raise CommunisError(
            f"{path}: is in the folder {path.parent.name}, expected Protocol or Optional: "
            "keep the official folders"
        )
    return path.parent.name
