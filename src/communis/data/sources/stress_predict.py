"""Stress-Predict: 35 people, rest and three stressful tasks, five sensors of an Empatica E4.

Iqbal et al., Sensors 22 (2022) 8135. A folder per person with the files of the wristband: the first
row is the start (Unix time, UTC), the second row the rate, the values follow. Heart rate starts ten
seconds after the other files. ACC.csv counts in 1/64 g and is divided by 64, so that its unit is g;
no other values are changed. IBI.csv (times of single heart beats) is not read.

Labels: Time_logs.xlsx gives the start and end of every task, to the minute; tags_SXX.csv gives the
presses of the wristband's button at these moments, to the second, without names. Each boundary is
the tag that belongs to the logged minute. If a tag is missing or far from its minute (S06), all
boundaries of that person are the logged minutes. The owner's labels per second agree at the
boundaries that were compared, the first three of S05 (tags) and of S06 (log). As in these labels,
everything outside of the three tasks is rest, including questionnaires. The log has a 12-hour
clock; the dates are in winter, so Irish time is UTC.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from string import ascii_uppercase
from typing import Literal
from xml.etree import ElementTree

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.tasks import Classification
from communis.data.recordings.about import About
from communis.data.recordings.files import matching, numbers, reading, shortened
from communis.data.recordings.recording import Dataset, Recording, Stream
from communis.data.recordings.source import Recorded

ABOUT = About(
    licence="MIT",
    citation="Iqbal et al. 2022, doi:10.3390/s22218135",
    address="https://github.com/italha-d/Stress-Predict-Dataset",
    files="*/Raw_data/S*/*.csv",
    how="Clone or download the owner's repository and keep Raw_data and Processed_data.",
)
TASKS = ("Stroop Test", "Interview", "Hyperventilation")  # the names in the log
LABELS = {"stress": ("rest", "stress"), "task": ("rest", "stroop", "interview", "hyperventilation")}
UNITS = {"acc": "g", "bvp": "a.u.", "eda": "uS", "temperature": "degC", "heart": "bpm"}
FILES = {"acc": "ACC", "bvp": "BVP", "eda": "EDA", "temperature": "TEMP", "heart": "HR"}
COUNTS_PER_G = 64
FAR = 120  # largest distance in seconds of a tag from its logged minute; 109 in S01 to S15
HOUR = 3_600
HALF_DAY = 43_200
DAY = 86_400
DAY_ZERO = 25_569  # 1 January 1970 in the spreadsheet's count of days
Sheet = Sequence[Mapping[str, str]]  # rows of cells by column letter
MOST_TEXT = 1 << 25  # bytes of a part of the log, which has 36 rows
LOG = "Processed_data/Time_logs.xlsx"


@dataclass(frozen=True)
class StressPredict(Recorded):
    """Settings of `[data] name = "stress_predict"`."""

    window: float = 30.0  # length of a window in seconds
    target: Literal["stress", "task"] = "stress"  # stress: rest or stress; task: rest or the task

    def sources(self) -> list[Path]:
        files = self.files()
        log = files[0].parents[2] / LOG
        return [*files, log] if log.is_file() else files

    def read(self, folder: Path) -> Dataset:
        labels = LABELS[self.target]
        return Dataset(self._recordings(folder), Classification(len(labels)), labels, UNITS)

    def _recordings(self, folder: Path) -> Iterator[Recording]:
        people = sorted({path.parent for path in matching(folder, ABOUT.files)})
        log = sheet(people[0].parents[1] / LOG)
        for person in people:
            number = re.fullmatch(r"S(\d+)", person.name)
            if not number:
                raise CommunisError(f"{person}: expected a folder S01 to S35, one per person")
            sensed = {m: _sensed(person / f"{name}.csv") for m, name in FILES.items()}
            begin = min(start for start, _, _ in sensed.values())
            streams = {}
            for m, (start, rate, values) in sensed.items():
                if start - begin > DAY:
                    raise CommunisError(
                        f"{person / FILES[m]}.csv, line 1: begins {start - begin:.0f} s after "
                        "another of this person's files, expected a day at most; get it again"
                    )
                in_units = values / COUNTS_PER_G if m == "acc" else values
                streams[m] = Stream(in_units, rate, start - begin)
            seconds = int(max(stream.end for stream in streams.values()))
            moments = begin + np.arange(seconds)
            classes = np.zeros(seconds, np.int64)
            for task, (start, end) in enumerate(boundaries(person, log, begin), start=1):
                inside = (moments >= start) & (moments < end)
                classes[inside] = task if self.target == "task" else 1
            name = person.relative_to(folder).as_posix()
            yield Recording(streams, Stream(classes, 1.0), int(number[1]), name=name)


def _sensed(path: Path) -> tuple[float, float, Array]:
    """Returns start (Unix time), rate and values (steps, channels) of a file of the wristband."""
    columns = 3 if path.stem == "ACC" else 1
    try:
        with path.open(encoding="utf-8") as lines:
            head = [float(next(lines, "").split(",")[0]) for _ in range(2)]
    except OSError as error:
        raise CommunisError(f"{path}: {error.strerror}; every person has this file") from None
    except ValueError:
        raise CommunisError(
            f"{path}: lines 1 and 2 must be the start (Unix time) and the rate (Hz)"
        ) from None
    if not (1e9 < head[0] < 1e10 and 0 < head[1] <= 1000):
        raise CommunisError(
            f"{path}: start {head[0]:g} and rate {head[1]:g} in lines 1 and 2; expected Unix time "
            "and Hz"
        )
    return head[0], head[1], numbers(path, columns, "," if columns > 1 else None, skip=2)


def boundaries(person: Path, log: Sheet, begin: float) -> list[tuple[float, float]]:
    """Returns start and end of the three tasks (Unix time): from the tags if they fit the log,
    otherwise from the log."""
    logged = _logged(person, log, begin)
    path = person / f"tags_{person.name}.csv"
    try:
        tags = sorted(float(line) for line in path.read_text("utf-8").split())
    except OSError as error:
        raise CommunisError(f"{path}: {error.strerror}; every person has this file") from None
    except ValueError as error:
        raise CommunisError(f"{path}: expected one Unix time per line: {error}") from None
    times = _nearest(tags, logged)
    if len(times) < len(logged) or np.abs(times - logged).max() > FAR:
        times = logged
    return [(float(start), float(end)) for start, end in times.reshape(-1, 2)]


def _nearest(tags: Sequence[float], logged: Array) -> Array:
    """Returns one tag for each logged minute, in order and with the least sum of distances; none if
    there are too few tags."""
    # best[n]: least sum for the first n minutes, with its tags
    best: list[tuple[float, tuple[float, ...]]] = [(0.0, ())]
    best += [(np.inf, ())] * len(logged)
    for tag in tags:
        for n in range(len(logged), 0, -1):
            cost, before = best[n - 1]
            best[n] = min(best[n], (cost + abs(tag - logged[n - 1]), (*before, tag)))
    return np.array(best[-1][1])


def _logged(person: Path, log: Sheet, begin: float) -> Array:
    """Returns (6,) Unix times of the tasks' starts and ends in the log."""
    path = person.parents[1] / LOG
    column_of = {text: column for column, text in log[0].items()} if log else {}
    row = next((row for row in log[2:] if row.get("A") == person.name), None)
    if row is None or any(name not in column_of for name in (*TASKS, "Date")):
        raise CommunisError(
            f"{path}: no row {person.name} with columns {', '.join((*TASKS, 'Date'))}"
        )
    columns = []
    for task in TASKS:
        start = column_of[task]
        columns += [start, _next(start)]  # the end is in the column right of the start
    try:
        midnight = (float(row[column_of["Date"]]) - DAY_ZERO) * DAY
        clock = np.array([round(float(row[column]) * DAY / 60) * 60 for column in columns])
    except (KeyError, ValueError):
        raise CommunisError(f"{path}: row {person.name}: a date or time is missing") from None
    times = midnight + clock
    early = begin - HOUR  # a task may begin before the wristband is switched on
    times = times + np.ceil((early - times) / HALF_DAY).clip(0) * HALF_DAY
    if any(later <= earlier for earlier, later in pairwise(times)) or times[-1] > begin + HALF_DAY:
        raise CommunisError(f"{path}: row {person.name}: times do not follow each other")
    return np.asarray(times)


def _next(column: str) -> str:
    """Returns the letters of the column to the right; AA follows Z."""
    number = 0
    for letter in column:
        number = 26 * number + 1 + ascii_uppercase.index(letter)
    letters = ""
    rest = number + 1
    while rest:
        rest, last = divmod(rest - 1, 26)
        letters = ascii_uppercase[last] + letters
    return letters


def sheet(path: Path) -> Sheet:
    """Returns the rows of a workbook's first sheet, by column letter, as text, without empty
    cells."""
    with reading(path, "workbook", "it holds the times of the tasks: get it again"):
        with zipfile.ZipFile(path) as parts:
            texts = _xml(path, parts, "xl/sharedStrings.xml")
            rows = _xml(path, parts, "xl/worksheets/sheet1.xml")
        shared = ["".join(part.text or "" for part in text.findall(".//{*}t")) for text in texts]
        return [_cells(row, shared) for row in rows.findall(".//{*}row")]


def _cells(row: ElementTree.Element, shared: Sequence[str]) -> dict[str, str]:
    cells = {}
    for cell in row.findall("{*}c"):
        value = cell.findtext("{*}v")
        if value is None:
            continue
        place = re.fullmatch(r"([A-Z]{1,3})\d{1,7}", cell.get("r") or "")
        if not place:
            raise ValueError(f"a cell at {shortened(str(cell.get('r')))!r}, expected B7 or similar")
        cells[place[1]] = shared[_index(value)] if cell.get("t") == "s" else value
    return cells


def _index(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(f"text number {number}")
    return number


def _xml(path: Path, parts: zipfile.ZipFile, name: str) -> ElementTree.Element:
    """Returns a part of a workbook, which is an archive; its size is checked first."""
    size = parts.getinfo(name).file_size
    if size > MOST_TEXT:
        raise CommunisError(
            f"{path}: {name} in it announces {size} bytes, expected at most {MOST_TEXT}; it is not "
            "the official log: get it again"
        )
    return ElementTree.fromstring(parts.read(name))
