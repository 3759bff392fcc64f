"""DSADS: 8 people, 19 daily and sports activities, five body-worn inertial units at 25 Hz.

Barshan and Altun, Daily and Sports Activities, UCI 2013. `DSADS/data/aXX/pY/sZZ.txt`: 5 s of
activity X, person Y, 125 lines of 45 numbers: torso, right arm, left arm, right leg, left leg, each
with acc xyz [m/s2], gyro xyz [rad/s] and mag xyz (relative to the earth's field).

The 60 files of an activity and person are segments of one signal of five minutes, and are joined in
the order of their numbers; after a missing number a new recording begins, so that the split by time
separates neighbours. Not every segment follows the previous one without a break (see
docs/reference/data/dsads.md); windows of 5 s (the default) never cross such a break. Where the
owner filled a segment by repeating one line, nothing was sensed and the values are NaN.
"""

from __future__ import annotations

import re
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
from communis.data.recordings.columns import chosen
from communis.data.recordings.files import matching, numbers, shaped
from communis.data.recordings.recording import Dataset, Recording, Stream
from communis.data.recordings.source import Recorded

ABOUT = About(
    licence="CC BY 4.0 (?)",
    citation="Barshan and Altun 2013, doi:10.24432/C5C59F; Altun et al. 2010, "
    "doi:10.1016/j.patcog.2010.04.019",
    address="https://archive.ics.uci.edu/dataset/256/daily+and+sports+activities",
    files="DSADS/data/a*/p*/s*.txt",
    count=9120,
    downloads=(
        Download("https://archive.ics.uci.edu/static/public/256/daily+and+sports+activities.zip"),
    ),
)
LABELS = (
    "sitting",
    "standing",
    "lying on back",
    "lying on right side",
    "ascending stairs",
    "descending stairs",
    "standing in an elevator",
    "moving around in an elevator",
    "walking in a parking lot",
    "walking on a flat treadmill",
    "walking on an inclined treadmill",
    "running on a treadmill",
    "exercising on a stepper",
    "exercising on a cross trainer",
    "cycling horizontally",
    "cycling vertically",
    "rowing",
    "jumping",
    "playing basketball",
)
SITES = ("torso", "right_arm", "left_arm", "right_leg", "left_leg")
SENSORS = {"acc": "m/s2", "gyro": "rad/s", "mag": "a.u."}
RATE = 25.0
ROWS = 125
COLUMNS = 45
COLUMNS_PER_SITE = 9


@dataclass(frozen=True)
class Dsads(Recorded):
    """Settings of `[data] name = "dsads"`."""

    window: float = 5.0  # length of a window in seconds
    # sites to read: torso, right_arm, left_arm, right_leg, left_leg; empty: all
    sites: tuple[str, ...] = ()
    # site: a modality per site and sensor (torso_acc, ...); sensor: one of all sites (acc, ...)
    group: Literal["site", "sensor"] = "site"

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen("sites", self.sites, SITES)

    def read(self, folder: Path) -> Dataset:
        paths = sorted(matching(folder, ABOUT.files), key=_numbers)
        columns = self._columns()
        units = {m: SENSORS[m.rpartition("_")[2]] for m in columns}
        recordings = _recordings(folder, paths, columns)
        return Dataset(recordings, Classification(len(LABELS)), LABELS, units)

    def _columns(self) -> dict[Modality, list[int]]:
        by_modality: dict[Modality, list[int]] = {}
        for site in chosen("sites", self.sites, SITES):
            for number, sensor in enumerate(SENSORS):
                name = f"{site}_{sensor}" if self.group == "site" else sensor
                first = COLUMNS_PER_SITE * SITES.index(site) + 3 * number
                by_modality.setdefault(name, []).extend(range(first, first + 3))
        return by_modality


def _recordings(
    folder: Path, paths: list[Path], columns: Mapping[Modality, list[int]]
) -> Iterator[Recording]:
    """Yields a recording for every run of consecutive segments, named by its first file."""
    for files in _runs(paths):
        activity, person, segment = _numbers(files[0])
        values = np.concatenate([_segment(path) for path in files])
        yield Recording(
            {m: Stream(values[:, own], RATE) for m, own in columns.items()},
            activity - 1,
            person,
            trial=segment,
            name=files[0].relative_to(folder).as_posix(),
        )


def _runs(paths: list[Path]) -> Iterator[list[Path]]:
    """Yields the files of consecutive segments of an activity and person; `paths` are in order."""
    run: list[Path] = []
    following: tuple[int, int, int] | None = None
    for path in paths:
        activity, person, segment = _numbers(path)
        if run and (activity, person, segment) != following:
            yield run
            run = []
        run.append(path)
        following = (activity, person, segment + 1)
    if run:
        yield run


def _numbers(path: Path) -> tuple[int, int, int]:
    """Returns activity, person and segment from the path."""
    inner = "/".join(path.parts[-3:])
    match = re.fullmatch(r"a(\d+)/p(\d+)/s(\d+)\.txt", inner)
    if not match or not 1 <= int(match[1]) <= len(LABELS):
        raise CommunisError(
            f"{path}: expected aXX/pY/sZZ.txt with an activity XX from 1 to {len(LABELS)}"
        )
    return int(match[1]), int(match[2]), int(match[3])


def _segment(path: Path) -> Array:
    """Returns the values of a segment; repeated lines are NaN."""
    values = shaped(path, numbers(path, COLUMNS, ","), ROWS, COLUMNS)
    same = (values[1:] == values[:-1]).all(1)  # 45 noisy numbers do not repeat by chance
    if same.any():
        values[np.append(same, False) | np.append(False, same)] = np.nan
    return values
