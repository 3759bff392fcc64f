"""Usc_had: 14 people, 12 everyday activities, one accelerometer and gyroscope on the right hip.

Zhang and Sawchuk, USC-HAD, UbiComp workshops 2012. One MATLAB file per trial,
`USC-HAD/SubjectN/aXtY.mat`, activity X, trial Y; `sensor_readings` holds acc xyz [g] and gyro xyz
[deg/s] at 100 Hz.

The numbers in the path are what counts, as the owner's readme defines them. The files repeat them
in fields of their own, which are compared. One file spells `activity_numbr`; two contradict their
path. One of these, Subject14/a3t2, calls itself walking-left, but the person turns right in it
(mean rate about the vertical -18 deg/s; +18 to +24 in this subject's trials of walking left).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from communis.core.errors import CommunisError
from communis.core.tasks import Classification
from communis.data.recordings.about import About, Download
from communis.data.recordings.files import matching, shaped
from communis.data.recordings.matlab import matlab
from communis.data.recordings.recording import Dataset, Recording, Stream
from communis.data.recordings.source import Recorded

ABOUT = About(
    licence="research use (?)",
    citation="Zhang and Sawchuk 2012, doi:10.1145/2370216.2370438",
    address="https://sipi.usc.edu/had/",
    files="USC-HAD/Subject*/a*t*.mat",
    count=840,
    downloads=(Download("https://sipi.usc.edu/had/USC-HAD.zip"),),
)
LABELS = (
    "walking forward",
    "walking left",
    "walking right",
    "walking upstairs",
    "walking downstairs",
    "running forward",
    "jumping up",
    "sitting",
    "standing",
    "sleeping",
    "elevator up",
    "elevator down",
)
UNITS = {"acc": "g", "gyro": "deg/s"}
RATE = 100.0
SLIPS = {  # what these official files say of themselves: subject, activity, trial
    "Subject5/a8t3.mat": (5, 8, 2),
    "Subject14/a3t2.mat": (14, 2, 2),
}


@dataclass(frozen=True)
class UscHad(Recorded):
    """Settings of `[data] name = "usc_had"`."""

    window: float = 2.56  # seconds per window
    check: bool = True  # refuse a file that contradicts its path, apart from the known slips

    def read(self, folder: Path) -> Dataset:
        paths = sorted(matching(folder, ABOUT.files), key=_numbers)
        return Dataset(self._recordings(folder, paths), Classification(len(LABELS)), LABELS, UNITS)

    def _recordings(self, folder: Path, paths: list[Path]) -> Iterator[Recording]:
        for path in paths:
            subject, activity, trial = _numbers(path)
            found = matlab(path, "sensor_readings")
            if self.check:
                _compared(path, found)
            values = shaped(path, found["sensor_readings"], None, 6).astype(np.float32)
            yield Recording(
                {"acc": Stream(values[:, :3], RATE), "gyro": Stream(values[:, 3:], RATE)},
                activity - 1,
                subject,
                trial=trial,
                name=path.relative_to(folder).as_posix(),
            )


def _numbers(path: Path) -> tuple[int, int, int]:
    """Subject, activity and trial, from the path."""
    found = re.fullmatch(r"Subject(\d+)/a(\d+)t(\d+)\.mat", f"{path.parent.name}/{path.name}")
    if not found or not 1 <= int(found[2]) <= len(LABELS):
        raise CommunisError(
            f"{path}: expected SubjectN/aXtY.mat with an activity X from 1 to {len(LABELS)}"
        )
    return int(found[1]), int(found[2]), int(found[3])


def _compared(path: Path, found: Mapping[str, Any]) -> None:
    """An error if the file's own fields contradict its path."""
    key = "activity_numbr" if "activity_numbr" in found else "activity_number"
    said = tuple(_field(path, found, name) for name in ("subject", key, "trial"))
    expected = _numbers(path)
    if said not in (expected, SLIPS.get(f"{path.parent.name}/{path.name}")):
        raise CommunisError(
            f"{path}: says it is subject {said[0]}, activity {said[1]}, trial {said[2]}, but its "
            f"path says {expected[0]}, {expected[1]}, {expected[2]}; get the file again, or set "
            "data.check = false to go by the path"
        )


def _field(path: Path, found: Mapping[str, Any], name: str) -> int:
    values = np.ravel(found.get(name, ()))
    try:
        return int(values[0])
    except (IndexError, TypeError, ValueError):
        what = repr(str(values[0])) if len(values) else "nothing"
        raise CommunisError(f"{path}: {name} is {what}, expected a number") from None
