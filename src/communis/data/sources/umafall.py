"""UMAFall: 19 people, 12 everyday activities and 3 falls; a phone and up to four sensor tags.

Casilari, Santoyo-Ramon and Cano-Garcia, UMAFall, Procedia Computer Science 110, 2017. One text file
per trial of 15 s, `UMAFall_Dataset/UMAFall_Subject_NN_{ADL,Fall}_Activity_Trial_date.csv`: a header
whose lines begin with % and name the position of every sensor, then one line per sample,
`ms; sample number; x; y; z; 0 acc, 1 gyro or 2 mag; sensor`. Many trials lack some sensors.

Time stamps are times of arrival. Those of the tags are used unchanged, on a grid of 20 Hz. Those of
the phone come in batches (hundreds of samples may have the same stamp, mostly at the start): its
samples follow each other at 200 Hz, so each sample gets the latest time that its stamp and the
samples after it allow. Longer gaps are NaN, as are accelerometers and magnetometers with exactly 0
on all axes, which they report before their first reading. The accelerometers of some tags start
with values four times too small (docs/reference/data/umafall.md). Files that a spreadsheet has
saved again have lost their decimal points ("1.012.598.156") and cannot be repaired; see `spoilt`.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.tasks import Classification
from communis.data.recordings.about import About
from communis.data.recordings.columns import chosen
from communis.data.recordings.files import matching, numbers
from communis.data.recordings.recording import Dataset, Recording, Stream, on_grid
from communis.data.recordings.source import Recorded

log = logging.getLogger("communis")
ABOUT = About(
    licence="CC BY 4.0 (?)",
    citation="Casilari, Santoyo-Ramon and Cano-Garcia 2017, doi:10.1016/j.procs.2017.06.110",
    address="https://figshare.com/articles/dataset/UMA_ADL_FALL_Dataset_zip/4214283",
    files="UMAFall_Dataset/UMAFall_Subject_*.csv",
    count=746,
    how="Download the archive from the owner's page and unpack it.",
)
LABELS = (
    "Aplausing",  # the owner's spelling, as in the file names
    "Bending",
    "GoDownstairs",
    "GoUpstairs",
    "HandsUp",
    "Hopping",
    "Jogging",
    "LyingDown_OnABed",
    "MakingACall",
    "OpeningDoor",
    "Sitting_GettingUpOnAChair",
    "Walking",
    "backwardFall",
    "forwardFall",
    "lateralFall",
)
FALL_LABELS = ("ADL", "Fall")
SITES = {
    "RIGHTPOCKET": "pocket",
    "CHEST": "chest",
    "WAIST": "waist",
    "WRIST": "wrist",
    "ANKLE": "ankle",
}
SENSORS = {"acc": "g", "gyro": "deg/s", "mag": "uT"}  # in the order of their numbers in the files
COLUMNS = "% TimeStamp; Sample No; X-Axis; Y-Axis; Z-Axis; Sensor Type; Sensor ID;"
PHONE = "pocket"
PHONE_RATE = 200.0
TAG_RATE = 20.0
PHONE_GAP = 0.05  # seconds: longer gaps are NaN
TAG_GAP = 0.25
PHONE_PERIOD = 4.9  # ms, just below the real periods of the phones (4.94 to 5.07 ms)
NAME = re.compile(
    r"UMAFall_(Subject_(\d+)_(ADL|Fall)_(\w+)_(\d+))_(\d{4})-(\d\d)-(\d\d)_[\d-]+\.csv"
)


@dataclass(frozen=True)
class Umafall(Recorded):
    """Settings of `[data] name = "umafall"`."""

    window: float = 15.0  # length of a window in seconds; 15: a trial, as a fall is a moment of it
    target: Literal["activity", "fall"] = "activity"  # activity: one of 15; fall: ADL or fall
    sites: tuple[str, ...] = ()  # sites to read: pocket, chest, waist, wrist, ankle; empty: all
    # files without decimal points, which a spreadsheet has saved: skip: leave out; refuse: an error
    spoilt: Literal["skip", "refuse"] = "skip"

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen("sites", self.sites, SITES.values())

    def read(self, folder: Path) -> Dataset:
        paths = matching(folder, ABOUT.files)
        labels = LABELS if self.target == "activity" else FALL_LABELS
        units = {}
        for site in self.sites or SITES.values():
            for sensor, unit in SENSORS.items():
                if site != PHONE or sensor == "acc":  # the phone has an accelerometer only
                    units[f"{site}_{sensor}"] = unit
        recordings = self._recordings(folder, paths, units)
        return Dataset(recordings, Classification(len(labels)), labels, units)

    def _recordings(
        self, folder: Path, paths: list[Path], wanted: Mapping[str, str]
    ) -> Iterator[Recording]:
        for path in paths:
            name = NAME.fullmatch(path.name)
            if not name or name[4] not in LABELS:
                raise CommunisError(
                    f"{path}: expected UMAFall_Subject_NN_ADL_Activity_Trial_date.csv (or Fall for "
                    f"ADL) with one of the activities {', '.join(LABELS)}"
                )
            header = _header(path)
            if header[0].endswith(";"):
                if self.spoilt == "skip":
                    log.warning("%s is left out: a spreadsheet has damaged its numbers", path.name)
                    continue
                raise CommunisError(
                    f"{path}, line 1: ends in semicolons: a spreadsheet has saved this file, and "
                    'decimal points are lost; set data.spoilt = "skip" to leave such files out'
                )
            streams = _streams(path, _sensors(path, header, name[1]), len(header))
            streams = {m: stream for m, stream in streams.items() if m in wanted}
            label = LABELS.index(name[4])
            if streams:
                yield Recording(
                    streams,
                    label if self.target == "activity" else int(name[3] == "Fall"),
                    int(name[2]),
                    session=int(name[6] + name[7] + name[8]),
                    trial=int(name[5]),
                    name=path.relative_to(folder).as_posix(),
                )


def _header(path: Path) -> list[str]:
    """Returns the lines before the samples, without trailing white space."""
    header: list[str] = []
    try:
        with path.open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if not line.startswith("%") and line.strip(" ;\r\n"):
                    break
                header.append(line.rstrip())
    except OSError as error:
        raise CommunisError(f"{path}: cannot be read: {error.strerror}") from None
    if not header or not header[-1].startswith(COLUMNS.rstrip(";")):
        raise CommunisError(
            f"{path}, line {len(header) or 1}: expected a header that ends in {COLUMNS!r}"
        )
    return header


def _sensors(path: Path, header: list[str], identity: str) -> dict[int, str]:
    """Returns the site of each sensor number from the header; raises an error if the header is that
    of another trial."""
    sensors = {}
    for row, line in enumerate(header, start=1):
        trial = re.fullmatch(r"% ID: *(\S+)", line)
        if trial and trial[1].lower() != identity.lower():
            raise CommunisError(
                f"{path}, line {row}: the header is of {trial[1]}, the file name of {identity}"
            )
        sensor = re.match(r"%(?:\w\w:){5}\w\w; *(\d+); *(\w+);", line)
        if not sensor:
            continue
        if sensor[2] not in SITES:
            raise CommunisError(
                f"{path}, line {row}: a sensor at {sensor[2]}, expected one of {', '.join(SITES)}"
            )
        sensors[int(sensor[1])] = SITES[sensor[2]]
    if not sensors:
        raise CommunisError(
            f"{path}: the header names no sensor, expected lines `%MAC; ID; POSITION;`"
        )
    return sensors


def _streams(path: Path, sensors: Mapping[int, str], skip: int) -> dict[str, Stream]:
    """Returns the streams of all sensors of a trial."""
    rows = numbers(path, 7, ";", skip)
    known = np.isin(rows[:, 5], range(len(SENSORS))) & np.isin(rows[:, 6], list(sensors))
    if not known.all():
        line = int(np.argmin(known))
        raise CommunisError(
            f"{path}, line {skip + line + 1}: sensor type {rows[line, 5]:g} of sensor "
            f"{rows[line, 6]:g}, expected types 0, 1, 2 of the header's sensors {sorted(sensors)}"
        )
    streams = {}
    for number, site in sensors.items():
        for kind, sensor in enumerate(SENSORS):
            lines = np.flatnonzero((rows[:, 6] == number) & (rows[:, 5] == kind))
            stream = _stream(path, rows[lines], lines + skip + 1, site, sensor)
            if stream:
                streams[f"{site}_{sensor}"] = stream
    return streams


def _stream(path: Path, rows: Array, lines: Array, site: str, sensor: str) -> Stream | None:
    """Returns the stream of one sensor from its rows; None if nothing was sensed."""
    modality = f"{site}_{sensor}"
    _check_order(path, rows[:, 1], lines, np.diff(rows[:, 1]) != 1, f"sample number of {modality}")
    _check_order(path, rows[:, 0], lines, np.diff(rows[:, 0]) < 0, f"time of {modality}")
    stamps = rows[:, 0].astype(np.float64)
    if site == PHONE:
        times = latest(stamps, PHONE_PERIOD) / 1000
        rate = PHONE_RATE
        gap = PHONE_GAP
    else:
        times = stamps / 1000
        rate = TAG_RATE
        gap = TAG_GAP
    sensed = rows[:, 2:5].any(1) if sensor != "gyro" else np.ones(len(rows), bool)
    if sensed.sum() < 2 or times[sensed][-1] <= 0:
        return None
    try:
        return on_grid(times[sensed], rows[sensed, 2:5], rate, gap)
    except CommunisError as error:
        raise CommunisError(f"{path}: {modality}: {error}") from None


def _check_order(path: Path, values: Array, lines: Array, wrong: Array, name: str) -> None:
    """Raises an error at the first step between two rows that is wrong."""
    if wrong.any():
        row = int(np.argmax(wrong))
        raise CommunisError(
            f"{path}, line {lines[row + 1]}: {name} is {values[row + 1]:g} after "
            f"{values[row]:g} (line {lines[row]}), expected the next one; get the file again"
        )


def latest(stamps: Array, period: float) -> Array:
    """Returns the latest possible times of samples that arrived at `stamps` and were taken at least
    a `period` apart."""
    steps = np.arange(len(stamps)) * period
    return np.asarray(np.minimum.accumulate((stamps - steps)[::-1])[::-1] + steps)
