"""USC-HAD: 14 people, 12 everyday activities, one accelerometer and gyroscope on the right hip.

Zhang and Sawchuk, USC-HAD, UbiComp workshops 2012. One MATLAB file per trial,
`USC-HAD/SubjectN/aXtY.mat`, activity X, trial Y; `sensor_readings` holds acc xyz [g] and gyro xyz
[deg/s] at 100 Hz.

The numbers in the path are used, as the owner's readme defines them. Fields in the files repeat
them, and are compared with the path. One file spells `activity_numbr`; two files contradict their
path. One of these, Subject14/a3t2, states walking-left, but the person turns right in it (mean rate
about the vertical -18 deg/s; +18 to +24 in this subject's trials of walking left).
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
SLIPS = {  # official files with wrong fields: subject, activity, trial
    "Subject5/a8t3.mat": (5, 8, 2),
    "Subject14/a3t2.mat": (14, 2, 2),
}


@dataclass(frozen=True)
class UscHad(Recorded):
    """Settings of `[data] name = "usc_had"`."""

    window: float = 2.56  # length of a window in seconds
    check: bool = True  # refuse files whose fields contradict their path, except two known files

    def read(self, folder: Path) -> Dataset:
        paths = sorted(matching(folder, ABOUT.files), key=_numbers)
        return Dataset(self._recordings(folder, paths), Classification(len(LABELS)), LABELS, UNITS)

    def _recordings(self, folder: Path, paths: list[Path]) -> Iterator[Recording]:
        for path in paths:
            subject, activity, trial = _numbers(path)
            variables = matlab(path, "sensor_readings")
            if self.check:
                _check_fields(path, variables)
            values = shaped(path, variables["sensor_readings"], None, 6).astype(np.float32)
            yield Recording(
                {"acc": Stream(values[:, :3], RATE), "gyro": Stream(values[:, 3:], RATE)},
                activity - 1,
                subject,
                trial=trial,
                name=path.relative_to(folder).as_posix(),
            )


def _numbers(path: Path) -> tuple[int, int, int]:
    """Returns subject, activity and trial from the path."""
    match = re.fullmatch(r"Subject(\d+)/a(\d+)t(\d+)\.mat", f"{path.parent.name}/{path.name}")
    if not match or not 1 <= int(match[2]) <= len(LABELS):
        raise CommunisError(
            f"{path}: expected SubjectN/aXtY.mat with an activity X from 1 to {len(LABELS)}"
        )
    return int(match[1]), int(match[2]), int(match[3])


def _check_fields(path: Path, variables: Mapping[str, Any]) -> None:
    """Raises an error if the fields of the file contradict its path."""
    key = "activity_numbr" if "activity_numbr" in variables else "activity_number"
    stated = tuple(_field(path, variables, name) for name in ("subject", key, "trial"))
    expected = _numbers(path)
    known_slip = SLIPS.get(f"{path.parent.name}/{path.name}")
    if stated not in (expected, known_slip):
        raise CommunisError(
            f"{path}: its fields state subject {stated[0]}, activity {stated[1]}, trial "
            f"{stated[2]}, but its path {expected[0]}, {expected[1]}, {expected[2]}; get the file "
            "again, or set data.check = false to use the path"
        )


def _field(path: Path, variables: Mapping[str, Any], name: str) -> int:
    """Returns a field of the file, which must be a number."""
    values = np.ravel(variables.get(name, ()))
    try:
        return int(values[0])
    except (IndexError, TypeError, ValueError):
        content = repr(str(values[0])) if len(values) else "empty"
        raise CommunisError(f"{path}: {name} is {content}, expected a number") from None
