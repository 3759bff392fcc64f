"""RealWorld: 15 people, 8 activities outdoors, seven phones and watches on the body at 50 Hz.

RealWorld (HAR), Sztyler & Stuckenschmidt, PerCom 2016. One archive per person, sensor and activity,
`proband4/data/acc_walking_csv.zip`, with one file per position, `acc_walking_chest.csv`: a header,
then number, time (ms since 1970), x, y, z. The names of the gyroscope's files begin with Gyroscope,
those of the magnetometer's with MagneticField. Some activities were recorded in parts:
`acc_walking_2_chest.csv` or archives in the archive (`acc_climbingup_1_csv.zip`); every part is a
trial. Archives are read without unpacking; unpacked files are read, too, and have priority over an
archive with the same files.

The devices sample irregularly, each by its own clock, which the network sets: every stream is
interpolated to 50 Hz on the common time of its part, and stretches without a sample are NaN. If a
file is missing or holds only a header (some positions failed), the part lacks the modality.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from zipfile import ZipFile

import numpy as np
import pandas as pd

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.memory import room
from communis.core.tasks import Classification
from communis.data.recordings.about import About, Download
from communis.data.recordings.columns import chosen
from communis.data.recordings.files import matching, reading
from communis.data.recordings.recording import Dataset, Recording, Stream, on_grid
from communis.data.recordings.source import Recorded

ABOUT = About(
    licence="none stated (?)",
    citation="Sztyler & Stuckenschmidt 2016, doi:10.1109/PERCOM.2016.7456521",
    address="https://www.uni-mannheim.de/dws/research/projects/activity-recognition/dataset/"
    "dataset-realworld/",
    files="realworld2016_dataset/proband*/data/**/*csv*",
    downloads=(
        Download(
            "http://wifo5-14.informatik.uni-mannheim.de/sensor/dataset/realworld2016/"
            "realworld2016_dataset.zip"
        ),
    ),
    how="The archives inside (proband1/data/acc_walking_csv.zip, ...) need not be unpacked.",
)
LABELS = (
    "climbingdown",
    "climbingup",
    "jumping",
    "lying",
    "running",
    "sitting",
    "standing",
    "walking",
)
SITES = ("chest", "forearm", "head", "shin", "thigh", "upperarm", "waist")
UNITS = {"acc": "m/s2", "gyro": "rad/s", "mag": "uT"}
SENSORS = {"acc": "acc", "gyr": "gyro", "gyroscope": "gyro", "mag": "mag", "magneticfield": "mag"}
NAME = re.compile(
    rf"({'|'.join(SENSORS)})_({'|'.join(LABELS)})(?:_(\d+))?_({'|'.join(SITES)})\.csv"
)
HEADER = ["id", "attr_time", "attr_x", "attr_y", "attr_z"]
RATE = 50.0
PERIOD = 20  # milliseconds
MOST_NESTED = 2  # depth of archives in archives; the owner's files have a depth of one
LONGEST = 6 * 3600  # seconds: in a longer part, a clock is wrong


@dataclass(frozen=True)
class Csv:
    """The place of a table: a file, and the names within if the file is an archive."""

    file: Path
    inside: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " > ".join([str(self.file), *self.inside])


@dataclass(frozen=True)
class Realworld(Recorded):
    """Settings of `[data] name = "realworld"`."""

    window: float = 3.0  # length of a window in seconds
    # sites to read: chest, forearm, head, shin, thigh, upperarm, waist; empty: all
    sites: tuple[str, ...] = ()
    sensors: tuple[str, ...] = ()  # sensors to read: acc, gyro, mag; empty: all
    longest_gap: float = 0.2  # longest time between two samples that is interpolated, in seconds

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen("sites", self.sites, SITES)
        chosen("sensors", self.sensors, UNITS)
        if self.longest_gap <= 0:
            raise CommunisError(f"longest_gap must be positive seconds, got {self.longest_gap}")

    def read(self, folder: Path) -> Dataset:
        sites = chosen("sites", self.sites, SITES)
        sensors = chosen("sensors", self.sensors, UNITS)
        units = {f"{site}_{sensor}": UNITS[sensor] for site in sites for sensor in sensors}
        recordings = self._recordings(folder, set(units))
        return Dataset(recordings, Classification(len(LABELS)), LABELS, units)

    def _recordings(self, folder: Path, wanted: set[Modality]) -> Iterator[Recording]:
        by_subject: dict[int, list[Path]] = defaultdict(list)
        for path in matching(folder, ABOUT.files):
            by_subject[_subject(path)].append(path)
        for subject, paths in sorted(by_subject.items()):
            for (activity, part), tables in sorted(_parts(paths).items()):
                selected = {m: tables[m] for m in sorted(tables) if m in wanted}
                streams = self._streams(selected)
                if streams:
                    place = _data(paths[0]).relative_to(folder).as_posix()
                    yield Recording(
                        streams,
                        LABELS.index(activity),
                        subject,
                        trial=part,
                        name=f"{place}/{activity}_{part}",
                    )

    def _streams(self, tables: dict[Modality, Csv]) -> dict[Modality, Stream]:
        """Returns all streams of one part on a common grid, without those that have no samples."""
        samples = {}
        for m, csv in tables.items():
            times, values = _samples(csv)
            if len(times):
                samples[m] = (times, values)
        begin = min((int(times[0]) for times, _ in samples.values()), default=0)
        streams = {}
        for m, (times, values) in samples.items():
            if times[-1] - begin > LONGEST * 1000:
                raise CommunisError(
                    f"{tables[m]}: its last sample is {(times[-1] - begin) / 1000:g} s after the "
                    f"first of its part, expected at most {LONGEST} s: a clock was wrong; leave "
                    "the device out with data.sites"
                )
            first = (int(times[0]) - begin) // PERIOD
            try:
                seconds = (times - (begin + first * PERIOD)) / 1000
                stream = on_grid(seconds, values, RATE, self.longest_gap)
            except CommunisError as error:
                raise CommunisError(f"{tables[m]}: {error}") from None
            streams[m] = Stream(stream.values, RATE, start=first / RATE)
        return streams


def _data(path: Path) -> Path:
    """Returns the folder `data` of the person to whom the file belongs."""
    return next(above for above in path.parents if above.parent.name.startswith("proband"))


def _subject(path: Path) -> int:
    number = _data(path).parent.name.removeprefix("proband")
    if not number.isdigit() or not 1 <= int(number) <= 15:
        raise CommunisError(f"{path}: is in proband{number}, expected proband1 to proband15")
    return int(number)


def _parts(paths: list[Path]) -> dict[tuple[str, int], dict[Modality, Csv]]:
    """Returns one person's tables, by activity and part, then by modality."""
    parts: dict[tuple[str, int], dict[Modality, Csv]] = defaultdict(dict)
    for path in sorted(paths, key=_files_first):
        for csv in _tables(Csv(path)):
            parsed = NAME.fullmatch(_basename(csv).lower())
            if not parsed:
                raise CommunisError(f"{csv}: expected a name such as acc_walking_chest.csv")
            sensor, activity, part, site = parsed.groups()
            if not part:  # the number may be in the name of the archive or folder
                holder = (*csv.file.parts, *csv.inside)[-2]
                part = "".join(re.findall(r"_(\d+)_csv(?:\.zip)?$", holder))
            tables = parts[activity, int(part or 1)]
            tables.setdefault(f"{site}_{SENSORS[sensor]}", csv)
    return parts


def _files_first(path: Path) -> tuple[bool, Path]:
    """Returns the key that sorts files before archives."""
    return path.suffix.lower() == ".zip", path


def _basename(csv: Csv) -> str:
    return PurePosixPath(csv.inside[-1]).name if csv.inside else csv.file.name


def _tables(place: Csv) -> Iterator[Csv]:
    """Yields the tables of motion sensors in a file, an archive, or archives in an archive. Other
    tables (GPS, light, sound) are skipped by their name."""
    name = _basename(place).lower()
    if name.partition("_")[0] not in SENSORS:
        return
    if name.endswith(".csv"):
        yield place
    elif name.endswith("csv.zip"):
        with _archive(place) as archive:
            members = archive.namelist()
        for member in sorted(members):
            yield from _tables(Csv(place.file, (*place.inside, member)))


def _archive(place: Csv) -> ZipFile:
    if len(place.inside) > MOST_NESTED:
        raise CommunisError(
            f"{place}: an archive within {MOST_NESTED} others, which the official files do not "
            "contain: get it again"
        )
    with reading(place, "archive"):
        return ZipFile(_content(place))


def _content(place: Csv) -> Path | BytesIO:
    if not place.inside:
        return place.file
    outer = _archive(Csv(place.file, place.inside[:-1]))
    with reading(place, "file of an archive"), outer as archive:
        member = archive.getinfo(place.inside[-1])
        room(place, member.file_size, "what it announces")
        return BytesIO(archive.read(member))


def _samples(csv: Csv) -> tuple[Array, Array]:
    """Returns times (n,) in milliseconds, ascending, and values (n, 3)."""
    with reading(csv, "table", f"expected the columns {', '.join(HEADER)}"):
        table = pd.read_csv(_content(csv), low_memory=False)
    if list(table.columns) != HEADER or not isinstance(table.index, pd.RangeIndex):
        raise CommunisError(
            f"{csv}, line 1: columns {', '.join(map(str, table.columns))}, expected "
            f"{', '.join(HEADER)} separated by commas"
        )
    cells = table[HEADER[1:]].apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)
    wrong = np.flatnonzero(~np.isfinite(cells).all(1))
    if len(wrong):
        row = wrong[0]
        raise CommunisError(
            f"{csv}, line {row + 2}: {','.join(map(str, table.iloc[row]))}; expected "
            "five numbers separated by commas; it may have been cut short: get it again"
        )
    cells = cells[np.argsort(cells[:, 0], kind="stable")]
    return cells[:, 0], cells[:, 1:].astype(np.float32)
