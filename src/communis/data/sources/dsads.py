"""Dsads: 8 people, 19 daily and sports activities, five body-worn inertial units at 25 Hz.

Barshan and Altun, Daily and Sports Activities, UCI 2013. `DSADS/data/aXX/pY/sZZ.txt`: 5 s of
activity X, person Y, 125 lines of 45 numbers: torso, right arm, left arm, right leg, left leg, each
with acc xyz [m/s2], gyro xyz [rad/s] and mag xyz (relative to the earth's field).

The 60 files of an activity and person are pieces of one signal of five minutes and are joined in
the order of their numbers; a missing number starts a new recording, so that the split by time keeps
neighbours apart. Not every piece follows the one before without a break (see
docs/reference/data/dsads.md): windows of 5 s (the default) never reach over such a joint. Where the
owner filled up a piece by repeating one line, nothing was sensed and the values are NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
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
ROWS, COLUMNS = 125, 45
FIRST = {
    (site, sensor): 9 * i + 3 * k
    for i, site in enumerate(SITES)
    for k, sensor in enumerate(SENSORS)
}  # of three columns


@dataclass(frozen=True)
class Dsads(Recorded):
    """Settings of `[data] name = "dsads"`."""

    window: float = 5.0  # seconds per window
    sites: tuple[str, ...] = ()  # of torso, right_arm, left_arm, right_leg, left_leg; empty: all
    group: Literal["site", "sensor"] = "site"  # modalities torso_acc, ..., or acc of all sites

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
        found: dict[Modality, list[int]] = {}
        sites = chosen("sites", self.sites, SITES)
        for (site, sensor), first in FIRST.items():
            if site in sites:
                name = f"{site}_{sensor}" if self.group == "site" else sensor
                found.setdefault(name, []).extend(range(first, first + 3))
        return found


def _recordings(
    folder: Path, paths: list[Path], columns: Mapping[Modality, list[int]]
) -> Iterator[Recording]:
    """One for every unbroken row of segment numbers, called by its first file."""
    numbered = [(*_numbers(path), path) for path in paths]
    rows = groupby(enumerate(numbered), lambda item: (*item[1][:2], item[1][2] - item[0]))
    for (activity, person, _), row in rows:
        files = [path for _, (*_, path) in row]
        values = np.concatenate([_segment(path) for path in files])
        yield Recording(
            {m: Stream(values[:, own], RATE) for m, own in columns.items()},
            activity - 1,
            person,
            trial=_numbers(files[0])[2],
            name=files[0].relative_to(folder).as_posix(),
        )


def _numbers(path: Path) -> tuple[int, int, int]:
    """Activity, person and segment, from the path."""
    inner = "/".join(path.parts[-3:])
    found = re.fullmatch(r"a(\d+)/p(\d+)/s(\d+)\.txt", inner)
    if not found or not 1 <= int(found[1]) <= len(LABELS):
        raise CommunisError(
            f"{path}: expected aXX/pY/sZZ.txt with an activity XX from 1 to {len(LABELS)}"
        )
    return int(found[1]), int(found[2]), int(found[3])


def _segment(path: Path) -> Array:
    values = shaped(path, numbers(path, COLUMNS, ","), ROWS, COLUMNS)
    same = (values[1:] == values[:-1]).all(1)  # 45 noisy numbers do not repeat by chance
    if same.any():
        values[np.append(same, False) | np.append(False, same)] = np.nan
    return values
