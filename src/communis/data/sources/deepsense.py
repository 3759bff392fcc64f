"""Deepsense: will the 60 GHz link be blocked? Power of 64 beams at a base station, DeepSense 6G.

Alkhateeb et al. 2023; blockage prediction from wireless signatures, Wu et al. 2022 (scenarios
17-22). Frame n is unit1/mmWave_data/mmWave_power_n.txt, 64 powers, one a line. Tables in
future-1, future-5 and future-10 name series of eight frames and whether the link is blocked in
each of the next 1, 5 or 10 frames. No file tells the rate; 10 Hz is nominal, from the owners'
paper on LiDAR in other scenarios, where one frame ahead is 100 ms and ten are a second.

Measured in scenario 17: frames are not one recording. They are 218 sequences of 46 frames, each
with a blockage that begins at its 37th, numbered through. No series reaches from one sequence
into another, and the owner's parts are whole sequences: 144 train, 41 val, 22 test (11 more are a
challenge without labels in its table). Still, the parts leak: 36 pairs of neighbouring sequences
overlap, so that 574 of 10,028 files are copies of others under another number. Of the test series
of future-1, 10 % share a frame with a training series and 2 of 50 are one (val: 20 %, 5 of 162).
Training series that share a frame with val or test are therefore left out, unless asked for.

Series of one sequence overlap by up to seven frames of eight, so any other way of dealing them
out leaks far more; it is refused. In future-1 and future-5 the owner has balanced the two
classes, in future-10 not.
"""

from __future__ import annotations

import re
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
POWER, LIDAR = "unit1_pwr_60ghz", "unit1_lidar"  # columns, followed by _1 to _8
Made = tuple[str, dict[str, Stream], int | Stream]  # where it comes from, inputs, target


@dataclass(frozen=True)
class Deepsense(Recorded):
    """Settings of `[data] name = "deepsense"`. Subject and scene are the scenario; the owner's
    parts are sessions 1 (train), 2 (val) and 3 (test), and equal shares reproduce them."""

    window: float = 0.8  # seconds per window; the owner's series have eight frames
    split: SplitKind = "session"  # the owner's parts
    shares: tuple[float, float, float] = (1.0, 1.0, 1.0)  # of the sessions 1, 2, 3: one each
    future: Literal[0, 1, 5, 10] = 10  # blocked within so many frames? 0: now, in whole sequences
    copies: bool = False  # keep training series with frames that are also in val or test

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.future and self.split in ("time", "trial"):
            raise CommunisError(
                f"deepsense: series overlap, so split = {self.split!r} would leak; use 'session', "
                "the owner's parts, or 'subject' with several scenarios"
            )
        frames = self.window * RATE
        whole = abs(frames - round(frames)) < 1e-6 and 1 <= round(frames) <= OBSERVED
        if self.future and (not whole or self.rate):
            raise CommunisError(
                f"deepsense: a series has {OBSERVED} frames at {RATE:g} Hz: window must be a "
                f"multiple of {1 / RATE:g} s up to {OBSERVED / RATE:g} s, and rate 0"
            )

    def sources(self) -> list[Path]:
        """The tables and all that lies in the units' folders that they speak of."""
        found = self.files()
        units = sorted({path.parents[1] for path in found})
        return [*found, *(p for u in units for p in sorted(u.glob("unit*/**/*")) if p.is_file())]

    def read(self, folder: Path) -> Dataset:
        units = {"mmwave": "a.u.", "lidar": "a.u."}
        return Dataset(self._recordings(folder), Classification(len(LABELS)), LABELS, units)

    def _recordings(self, folder: Path) -> Iterator[Recording]:
        later: dict[int, set[bytes]] = {}  # frames of parts that follow, by scenario
        for scenario, part, path in sorted(self._tables(folder), key=lambda t: (t[0], -t[1])):
            table, own = _table(path), set[bytes]()
            made = self._series(path, table) if self.future else _sequences(path, table)
            for where, streams, target in made:
                frames = {frame.tobytes() for frame in streams["mmwave"].values}
                if not self.copies and frames & later.get(scenario, set()):
                    continue
                own |= frames
                title = f"{path.relative_to(folder).as_posix()}, {where}"
                yield Recording(streams, target, scenario, scenario, part, name=title)
            later[scenario] = later.get(scenario, set()) | own

    def _tables(self, folder: Path) -> Iterator[tuple[int, int, Path]]:
        """Scenario, part (from 1) and file of every table that is needed."""
        wanted = f"future-{self.future or LONGEST}"
        tables = [path for path in matching(folder, ABOUT.files) if path.parent.name == wanted]
        if not tables:
            raise CommunisError(f"{folder}: no table in a folder {wanted}")
        for path in tables:
            name = re.fullmatch(r"scenario(\d+)_dev_series_(train|val|test)", path.stem)
            if not name:
                raise CommunisError(f"{path}: expected scenarioNN_dev_series_train|val|test.csv")
            yield int(name[1]), PARTS.index(name[2]) + 1, path

    def _series(self, path: Path, table: pd.DataFrame) -> Iterator[Made]:
        """One series after the other, in the order of time: of each the last frames, as many as a
        window holds."""
        blocked = _blockages(path, table, self.future)
        use = range(OBSERVED - round(self.window * RATE) + 1, OBSERVED + 1)
        sensors: list[tuple[str, Kind, Array, Callable[[Path], Array]]] = []
        for m, column, kind, reader in SENSORS:
            if f"{column}_1" in table:
                names = np.asarray(table[[f"{column}_{n}" for n in use]])
                sensors.append((m, kind, names, lru_cache(2 * OBSERVED)(reader)))
        for row in np.argsort(_frames(path, table[f"{POWER}_1"])):
            streams = {
                m: Stream(np.stack([seen(_beside(path, n)) for n in names[row]]), RATE, kind=kind)
                for m, kind, names, seen in sensors
            }
            yield f"line {row + 2}", streams, int(blocked[row].any())


def _sequences(path: Path, table: pd.DataFrame) -> Iterator[Made]:
    """Whole sequences, with the label of each frame. Series of one sequence start at frames that
    follow each other; the last of them looks ten frames ahead."""
    starts = np.sort(_frames(path, table[f"{POWER}_1"]))
    unit = path.parents[1] / "unit1"
    for run in np.split(starts, np.flatnonzero(np.diff(starts) != 1) + 1):
        frames = range(run[0], run[-1] + OBSERVED + LONGEST)
        powers = [power(unit / "mmWave_data" / f"mmWave_power_{n}.txt") for n in frames]
        classes = [label(unit / "label_data" / f"label_{n}.txt") for n in frames]
        target = Stream(np.array(classes, np.int64), RATE)
        where = f"frames {frames[0]}-{frames[-1]}"
        yield where, {"mmwave": Stream(np.stack(powers), RATE)}, target


def _table(path: Path) -> pd.DataFrame:
    with reading(path, "table"):
        found = pd.read_csv(path)
    needed = [f"{POWER}_{n + 1}" for n in range(OBSERVED)]
    _refuse_missing(path, found, needed)
    holes = np.flatnonzero(found.isna().any(axis=1))
    if len(holes) or not len(found):
        line = holes[0] + 2 if len(holes) else 2
        raise CommunisError(f"{path}, line {line}: cut short; get the file again")
    frames = np.stack([_frames(path, found[name]) for name in needed])
    broken = np.flatnonzero((np.diff(frames, axis=0) != 1).any(0))
    if len(broken):
        raise CommunisError(f"{path}, line {broken[0] + 2}: frames do not follow each other")
    return found


def _blockages(path: Path, table: pd.DataFrame, future: int) -> Array:
    """(series, future) 0 or 1."""
    names = [f"blockage_{n + 1}" for n in range(future)] if future > 1 else ["blockage_final"]
    _refuse_missing(path, table, names)
    wrong = np.flatnonzero(~np.asarray(table[names].isin([0, 1])).all(1))
    if len(wrong):
        raise CommunisError(f"{path}, line {wrong[0] + 2}: blockage must be 0 or 1")
    return np.asarray(table[names], np.int64)


def _refuse_missing(path: Path, table: pd.DataFrame, names: list[str]) -> None:
    missing = [name for name in names if name not in table]
    if missing:
        there = ", ".join(map(str, table.columns))
        raise CommunisError(f"{path}, line 1: no column {', '.join(missing)}; there are {there}")


def _frames(path: Path, names: Iterable[str]) -> Array:
    """The numbers of frames, from the names of their files."""
    found = [re.search(r"mmWave_power_(\d+)\.txt$", str(name)) for name in names]
    for row, match in enumerate(found):
        if not match:
            raise CommunisError(f"{path}, line {row + 2}: expected .../mmWave_power_NUMBER.txt")
    return np.array([int(match[1]) for match in found if match])


def _beside(path: Path, name: str) -> Path:
    """Tables name files relative to the folder of the scenario."""
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts or not name.isprintable():
        raise CommunisError(f"{path}: names {name!r}, expected a file below its scenario's folder")
    return path.parents[1] / inside


def power(path: Path) -> Array:
    return _values(path, BEAMS)


def label(path: Path) -> int:
    found = _values(path, 1)[0]
    if found not in (0, 1):
        raise CommunisError(f"{path}: {found:g}; expected 0 (free) or 1 (blocked)")
    return int(found)


def _values(path: Path, count: int) -> Array:
    """A small text file of `count` numbers. There are thousands: no more than needed is done."""
    try:
        found = np.array(path.read_bytes().split(), np.float32)
    except OSError as error:
        raise CommunisError(f"{path}: {error.strerror}; the dataset is not complete") from None
    except ValueError as error:
        raise CommunisError(f"{path}: not numbers, one a line: {error}") from None
    if len(found) != count:
        raise CommunisError(f"{path}: {len(found)} numbers, expected {count}; get it again")
    return found


def lidar(path: Path) -> Array:
    """(points, features) of one scan, as public loaders read those of scenarios 8 and 9; not tried
    on files of the owner."""
    return np.asarray(shaped(path, matlab(path, "data")["data"], None, None), np.float32)


SENSORS: tuple[tuple[str, str, Kind, Callable[[Path], Array]], ...] = (
    ("mmwave", POWER, "series", power),
    ("lidar", LIDAR, "points", lidar),
)
