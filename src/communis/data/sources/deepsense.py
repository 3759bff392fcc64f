"""DeepSense 6G: prediction of blockages of a 60 GHz link, from the power of 64 beams at a base
station.

Alkhateeb et al. 2023; blockage prediction from wireless signatures, Wu et al. 2022 (scenarios
17-22). Frame n is unit1/mmWave_data/mmWave_power_n.txt, 64 powers, one per line. Tables in
future-1, future-5 and future-10 list series of eight frames, and whether the link is blocked in
each of the next 1, 5 or 10 frames. No file states the rate; 10 Hz is nominal, from the owners'
paper on LiDAR in other scenarios, where one frame is 100 ms and ten are a second.

Scenario 17, examined: the frames are not one recording but 218 sequences of 46 frames, with
consecutive numbers; in each a blockage begins at the 37th frame. Every series is within one
sequence, and the owner's parts consist of complete sequences: 144 train, 41 val, 22 test (11 more
are a challenge without labels in its table). Nevertheless the parts leak: 36 pairs of neighbouring
sequences overlap, so that 574 of 10,028 files are copies of others under another number. Of the
test series of future-1, 10 % share a frame with a training series, and 2 of 50 are equal to one
(val: 20 %, 5 of 162). By default, training series that share a frame with val or test are
therefore left out.

Series of one sequence overlap by up to seven frames of eight, so any other split of series leaks
much more; it is refused. The owner balanced the two classes in future-1 and future-5, but not in
future-10.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Literal

import numpy as np
import pandas as pd

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.tasks import Classification
from communis.data.recordings.about import About
from communis.data.recordings.files import matching, reading, shaped
from communis.data.recordings.matlab import matlab
from communis.data.recordings.recording import Dataset, Kind, Recording, Stream
from communis.data.recordings.source import Recorded
from communis.data.recordings.splits import SplitKind

ABOUT = About(
    licence="CC BY-NC-SA 4.0 (?)",
    citation="Alkhateeb et al. 2023, DeepSense 6G, IEEE Communications Magazine; Wu et al. 2022, "
    "doi:10.1109/OJCOMS.2022.3162591",
    address="https://www.deepsense6g.net/wireless-signature-based-blockage-prediction/",
    files="**/future-*/scenario*_dev_series_*.csv",
    how="Register at the address, download one or more of scenarios 17-22 (development dataset) "
    "and unpack each into a folder of its own.",
)
LABELS = ("free", "blocked")
PARTS = ("train", "val", "test")
RATE = 10.0  # frames per second, nominal
OBSERVED = 8  # frames in a series
LONGEST = 10  # the tables of future-10 list every series of a sequence
BEAMS = 64
POWER = "unit1_pwr_60ghz"  # columns, followed by _1 to _8
LIDAR = "unit1_lidar"
Sample = tuple[str, dict[str, Stream], int | Stream]  # place, inputs, target


@dataclass(frozen=True)
class Deepsense(Recorded):
    """Settings of `[data] name = "deepsense"`. Subject and scene are the scenario; the owner's
    parts are sessions 1 (train), 2 (val) and 3 (test), and equal shares reproduce them."""

    window: float = 0.8  # length of a window in seconds, 0.1 to 0.8: a series has eight frames
    split: SplitKind = "session"  # unit that is never in training and test; session: owner's parts
    shares: tuple[float, float, float] = (1.0, 1.0, 1.0)  # of sessions 1, 2, 3; equal: one each
    # target: whether the link is blocked within this number of frames; 0: whether it is blocked
    # now, in complete sequences
    future: Literal[0, 1, 5, 10] = 10
    copies: bool = False  # whether to keep training series with frames that val or test contain

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.future and self.split in ("time", "trial"):
            raise CommunisError(
                f"deepsense: series overlap, so split = {self.split!r} would leak; use 'session', "
                "the owner's parts, or 'subject' with several scenarios"
            )
        frames = self.window * RATE
        possible = abs(frames - round(frames)) < 1e-6 and 1 <= round(frames) <= OBSERVED
        if self.future and (not possible or self.rate):
            raise CommunisError(
                f"deepsense: a series has {OBSERVED} frames at {RATE:g} Hz: window must be a "
                f"multiple of {1 / RATE:g} s up to {OBSERVED / RATE:g} s, and rate 0"
            )

    def sources(self) -> list[Path]:
        """Returns the tables and all files in the folders of their units."""
        tables = self.files()
        files = list(tables)
        for scenario in sorted({path.parents[1] for path in tables}):
            files += [path for path in sorted(scenario.glob("unit*/**/*")) if path.is_file()]
        return files

    def read(self, folder: Path) -> Dataset:
        units = {"mmwave": "a.u.", "lidar": "a.u."}
        return Dataset(self._recordings(folder), Classification(len(LABELS)), LABELS, units)

    def _recordings(self, folder: Path) -> Iterator[Recording]:
        frames_of_later_parts: dict[int, set[bytes]] = defaultdict(set)  # by scenario
        tables = sorted(self._tables(folder), key=lambda t: (t[0], -t[1]))  # test, val, train
        for scenario, part, path in tables:
            table = _table(path)
            frames_of_part: set[bytes] = set()
            samples = self._series(path, table) if self.future else _sequences(path, table)
            for place, streams, target in samples:
                frames = {frame.tobytes() for frame in streams["mmwave"].values}
                if not self.copies and frames & frames_of_later_parts[scenario]:
                    continue
                frames_of_part |= frames
                name = f"{path.relative_to(folder).as_posix()}, {place}"
                yield Recording(streams, target, scenario, scenario, part, name=name)
            frames_of_later_parts[scenario] |= frames_of_part

    def _tables(self, folder: Path) -> Iterator[tuple[int, int, Path]]:
        """Yields scenario, part (from 1) and file of every table that is needed."""
        wanted = f"future-{self.future or LONGEST}"
        tables = [path for path in matching(folder, ABOUT.files) if path.parent.name == wanted]
        if not tables:
            raise CommunisError(f"{folder}: no table in a folder {wanted}")
        for path in tables:
            name = re.fullmatch(r"scenario(\d+)_dev_series_(train|val|test)", path.stem)
            if not name:
                raise CommunisError(f"{path}: expected scenarioNN_dev_series_train|val|test.csv")
            yield int(name[1]), PARTS.index(name[2]) + 1, path

    def _series(self, path: Path, table: pd.DataFrame) -> Iterator[Sample]:
        """Yields one series after the other, in the order of time. Of each, the last frames are
        read, as many as a window holds."""
        blocked = _blockages(path, table, self.future)
        frames = range(OBSERVED - round(self.window * RATE) + 1, OBSERVED + 1)
        sensors: list[tuple[str, Kind, Array, Callable[[Path], Array]]] = []
        for m, column, kind, reader in SENSORS:
            if f"{column}_1" in table:
                names = np.asarray(table[[f"{column}_{n}" for n in frames]])
                sensors.append((m, kind, names, lru_cache(2 * OBSERVED)(reader)))
        for row in np.argsort(_frames(path, table[f"{POWER}_1"])):
            streams = {}
            for m, kind, names, cached_reader in sensors:
                values = [cached_reader(_beside(path, name)) for name in names[row]]
                streams[m] = Stream(np.stack(values), RATE, kind=kind)
            yield f"line {row + 2}", streams, int(blocked[row].any())


def _sequences(path: Path, table: pd.DataFrame) -> Iterator[Sample]:
    """Yields complete sequences, with the label of each frame. The series of one sequence start at
    consecutive frames; the target of the last one is ten frames ahead."""
    starts = np.sort(_frames(path, table[f"{POWER}_1"]))
    unit = path.parents[1] / "unit1"
    for run in np.split(starts, np.flatnonzero(np.diff(starts) != 1) + 1):
        frames = range(run[0], run[-1] + OBSERVED + LONGEST)
        powers = [power(unit / "mmWave_data" / f"mmWave_power_{n}.txt") for n in frames]
        classes = [label(unit / "label_data" / f"label_{n}.txt") for n in frames]
        target = Stream(np.array(classes, np.int64), RATE)
        place = f"frames {frames[0]}-{frames[-1]}"
        yield place, {"mmwave": Stream(np.stack(powers), RATE)}, target


def _table(path: Path) -> pd.DataFrame:
    """Returns a table of series after checking that it is complete and its frames are
    consecutive."""
    with reading(path, "table"):
        table = pd.read_csv(path)
    needed = [f"{POWER}_{n + 1}" for n in range(OBSERVED)]
    _refuse_missing(path, table, needed)
    incomplete = np.flatnonzero(table.isna().any(axis=1))
    if len(incomplete) or not len(table):
        line = incomplete[0] + 2 if len(incomplete) else 2
        raise CommunisError(f"{path}, line {line}: cut short; get the file again")
    frames = np.stack([_frames(path, table[name]) for name in needed])
    broken = np.flatnonzero((np.diff(frames, axis=0) != 1).any(0))
    if len(broken):
        raise CommunisError(
            f"{path}, line {broken[0] + 2}: frames do not follow each other; get the file again"
        )
    return table


def _blockages(path: Path, table: pd.DataFrame, future: int) -> Array:
    """Returns (series, future): 1 where the link is blocked, otherwise 0."""
    names = [f"blockage_{n + 1}" for n in range(future)] if future > 1 else ["blockage_final"]
    _refuse_missing(path, table, names)
    wrong = np.flatnonzero(~np.asarray(table[names].isin([0, 1])).all(1))
    if len(wrong):
        raise CommunisError(f"{path}, line {wrong[0] + 2}: expected a blockage of 0 or 1")
    return np.asarray(table[names], np.int64)


def _refuse_missing(path: Path, table: pd.DataFrame, names: list[str]) -> None:
    missing = [name for name in names if name not in table]
    if missing:
        known = ", ".join(map(str, table.columns))
        raise CommunisError(f"{path}, line 1: no column {', '.join(missing)}; there are {known}")


def _frames(path: Path, names: Iterable[str]) -> Array:
    """Returns the numbers of frames from the names of their files."""
    numbers = []
    for row, name in enumerate(names):
        match = re.search(r"mmWave_power_(\d+)\.txt$", str(name))
        if not match:
            raise CommunisError(f"{path}, line {row + 2}: expected .../mmWave_power_NUMBER.txt")
        numbers.append(int(match[1]))
    return np.array(numbers)


def _beside(path: Path, name: str) -> Path:
    """Returns the path of a file that a table names relative to the folder of the scenario."""
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts or not name.isprintable():
        raise CommunisError(f"{path}: names {name!r}, expected a file below its scenario's folder")
    return path.parents[1] / inside


def power(path: Path) -> Array:
    """Returns the power of every beam in a frame."""
    return _values(path, BEAMS)


def label(path: Path) -> int:
    """Returns the class of a frame."""
    value = _values(path, 1)[0]
    if value not in (0, 1):
        raise CommunisError(f"{path}: {value:g}; expected 0 (free) or 1 (blocked)")
    return int(value)


def _values(path: Path, count: int) -> Array:
    """Returns the numbers of a small text file. There are thousands of such files, so it does only
    what is necessary."""
    try:
        values = np.array(path.read_bytes().split(), np.float32)
    except OSError as error:
        raise CommunisError(f"{path}: {error.strerror}; the dataset is not complete") from None
    except ValueError as error:
        raise CommunisError(f"{path}: expected numbers, one per line: {error}") from None
    if len(values) != count:
        raise CommunisError(f"{path}: {len(values)} numbers, expected {count}; get it again")
    return values


def lidar(path: Path) -> Array:
    """Returns (points, features) of one scan, in the format in which public loaders read scenarios
    8 and 9; it is not tested on files of the owner."""
    return np.asarray(shaped(path, matlab(path, "data")["data"], None, None), np.float32)


SENSORS: tuple[tuple[str, str, Kind, Callable[[Path], Array]], ...] = (
    ("mmwave", POWER, "series", power),
    ("lidar", LIDAR, "points", lidar),
)
