"""Sidefiles: tables of intervals and JSON files beside the recordings that seem to hold their
labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.memory import room
from communis.data.own.columns import FileGuess
from communis.data.own.filenames import SENSORS, WORDS, Names, template
from communis.data.own.manifest import Files, TimeUnit
from communis.data.own.survey import Kind, Survey
from communis.data.own.tables import SECONDS, read, word
from communis.data.recordings.files import reading

COVERED = 0.5  # share of recordings or side files that belong together, at least
TRIED = 200  # recordings whose values are looked for in the name of a side file
TEMPLATES = 10  # that are compared with all files
SLACK = 1.0  # seconds by which an interval may begin before its recording
UNITS: tuple[TimeUnit, ...] = ("s", "ms", "us", "ns")


@dataclass(frozen=True)
class Beside:
    """The files with the labels; an empty pattern if there are none."""

    pattern: str = ""
    files: tuple[str, ...] = ()
    words: frozenset[str] = frozenset()
    lines: tuple[str, ...] = ()  # of the manifest
    doubts: tuple[str, ...] = ()


def beside(folder: Path, names: Names, guess: FileGuess, found: Survey) -> Beside:
    """Returns the first side files that fit the recordings."""
    for kind in found.labels:
        place, pairs = _joined(names, kind.files)
        one = kind.file is not None and len(kind.files) == 1
        if one and kind.file and _lists(folder / kind.files[0], kind, names):
            return _table(folder, kind, kind.files[0], kind.file, names.files[0], guess, found)
        if place and kind.start and kind.end:
            recording = next(iter(pairs.values()))
            return _table(folder, kind, place, None, recording, guess, found, next(iter(pairs)))
    return _from_json(folder, names, found.json)


def _joined(names: Names, files: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Returns the pattern by which side files belong to recordings, and a recording of each; an
    empty pattern if there is none."""
    keyed = [slot for slot in names.slots if slot.key and slot.key not in SENSORS]
    of_recordings = [
        (file, {slot.key: slot.values[i] for slot in keyed}) for i, file in enumerate(names.files)
    ]
    known = set(files)
    counts: Counter[str] = Counter()
    for file in files[:3]:
        counts.update(template(file, values) for _, values in of_recordings[:TRIED])
    candidates = [text for text in counts if "{" in text]
    best = ""
    pairs: dict[str, str] = {}
    for text in sorted(candidates, key=lambda text: (-text.count("{"), text))[:TEMPLATES]:
        filled = {_filled(text, values): file for file, values in of_recordings}
        there = {side: file for side, file in filled.items() if side in known}
        if len(there) > len(pairs):
            best, pairs = text, there
    return (best, pairs) if len(pairs) >= COVERED * len(files) else ("", {})


def _filled(text: str, values: Mapping[str, str]) -> str:
    for key, value in values.items():
        text = text.replace(f"{{{key}}}", value)
    return text


def _called(file: str) -> Iterator[str]:
    """Yields what a table may call a recording."""
    path = PurePosixPath(file)
    yield file
    yield path.name
    yield path.with_suffix("").as_posix()
    yield path.stem


def _lists(path: Path, kind: Kind, names: Names) -> bool:
    """Returns whether most words of the column of files are names of recordings."""
    assert kind.file is not None
    try:
        words = read(path, kind.how, words=[kind.file]).words[kind.file].words
    except CommunisError:
        return False
    recordings = {name for file in names.files for name in _called(file)}
    return bool(words) and sum(text in recordings for text in words) >= COVERED * len(words)


def _table(
    folder: Path,
    kind: Kind,
    place: str,
    file: str | None,
    recording: str,
    guess: FileGuess,
    found: Survey,
    example: str = "",
) -> Beside:
    """Returns a table of intervals, or of the classes of whole files. place: its pattern; example:
    the table of the recording."""
    column = kind.guess.keys["label"]
    words: set[str] = set()
    for name in kind.files:
        words.update(read(folder / name, kind.how, words=[column]).words[column].words)
    lines = ["", "[label.intervals]", f"pattern = {_toml(place)}", f"column = {_toml(column)}"]
    if file is not None:
        lines.append(f"file = {_toml(file)}")
    main = found.recordings[0].how
    if kind.how.delimiter != main.delimiter:
        lines.append(f"delimiter = {_toml(kind.how.delimiter)}")
    doubts = []
    if "label" in kind.guess.by_values:
        doubts.append(f"column {column!r} of {place!r} is a guess")
    if kind.start and kind.end:
        lines += [f"start = {_toml(kind.start)}", f"end = {_toml(kind.end)}"]
        begins, raw = _begins(folder / (example or kind.files[0]), kind, file, recording)
        times = _times(folder / recording, main, guess)
        unit, relative, share = _scale(begins, raw, guess.timing.unit, times)
        if unit != guess.timing.unit:
            lines.append(f"unit = {_toml(unit)}  # CHECK: a guess by the time of a recording")
            doubts.append(f"the intervals seem to be in {unit}")
        if relative:
            lines.append("relative = true  # CHECK: a guess by the time of a recording")
            doubts.append("the intervals seem to count from the first row of a recording")
        if share < COVERED:
            text = f"{share:.0%} of the intervals lie in the time of {recording}"
            lines.append(f"# CHECK: {share:.0%} of the intervals lie in the time of a recording")
            doubts.append(f"{text}: are they of another clock, or in another unit?")
    return Beside(place, kind.files, frozenset(words), tuple(lines), tuple(doubts))


def _begins(path: Path, kind: Kind, file: str | None, recording: str) -> tuple[Array, bool]:
    """Returns the begins of the intervals of a recording, and whether they are numbers; dates are
    in seconds."""
    assert kind.start is not None
    numeric = kind.start in {c for part in kind.guess.modalities.values() for c in part.columns}
    how = replace(kind.how, time_unit="s" if numeric else "date")
    words = [] if file is None else [file]
    table = read(path, how, words=words, time=kind.start)
    assert table.time is not None
    if file is None:
        return table.time, numeric
    names = set(_called(recording))
    coded = table.words[file]
    wanted = [i for i, text in enumerate(coded.words) if text in names]
    return table.time[np.isin(coded.codes, wanted)], numeric


def _times(path: Path, how: Files, guess: FileGuess) -> tuple[float, float]:
    """Returns the first and the last time of a recording, in seconds."""
    if guess.time is None:
        return 0.0, guess.rows / guess.rate
    time = read(path, replace(how, time_unit=guess.timing.unit), time=guess.time).time
    assert time is not None
    return float(time.min()), float(time.max())


def _scale(
    begins: Array, numeric: bool, unit: TimeUnit, times: tuple[float, float]
) -> tuple[TimeUnit, bool, float]:
    """Returns the unit of the intervals, whether they count from the first row, and the share that
    then lies in the time of the recording."""
    first, last = times
    if not numeric:
        return "date", False, _within(begins, first, last)
    own = () if unit == "date" else (unit,)
    tried = [(u, False) for u in (*own, *UNITS)] + [(u, True) for u in (*own, *UNITS)]
    best: tuple[TimeUnit, bool, float] = (own[0] if own else "s", False, -1.0)
    for candidate, relative in tried:
        seconds = begins * SECONDS[candidate] + (first if relative else 0.0)
        share = _within(seconds, first, last)
        if share > best[2]:
            best = candidate, relative, share
    return best


def _within(begins: Array, first: float, last: float) -> float:
    if not len(begins):
        return 0.0
    return float(((begins >= first - SLACK) & (begins <= last)).mean())


def _from_json(folder: Path, names: Names, files: Sequence[str]) -> Beside:
    """Returns JSON files with the classes of whole recordings."""
    for file in files:
        table = _loaded(folder / file)
        if isinstance(table, Mapping):
            listed = [(n, table[k]) for n in names.files for k in _called(n) if k in table]
            if len({name for name, _ in listed}) >= COVERED * len(names.files):
                return _json(file, (file,), [value for _, value in listed])
    place, pairs = _joined(names, files) if files else ("", {})
    if place:
        return _json(place, tuple(pairs), [_loaded(folder / side) for side in pairs])
    return Beside()


def _json(place: str, files: tuple[str, ...], values: Sequence[Any]) -> Beside:
    """Returns the JSON files if every value is a class, or has one under a name for labels."""
    key = ""
    if all(isinstance(value, Mapping) for value in values):
        names = [k for k in values[0] if k.lower() in WORDS["label"].split("|")]
        key = next((k for k in names if all(k in value for value in values)), "")
        values = [value.get(key) for value in values]
    if not all(isinstance(value, str | int | float) for value in values):
        return Beside()
    lines = ["", "[label.json]", f"pattern = {_toml(place)}"]
    if key:
        lines.append(f"key = {_toml(key)}")
    return Beside(place, files, frozenset(word(value) for value in values), tuple(lines))


def _loaded(path: Path) -> Any:
    """Returns the content of a JSON file; nothing if it cannot be read."""
    try:
        with reading(path, "JSON file"):
            room(path, 10 * path.stat().st_size, "its content")
            return json.loads(path.read_text("utf-8-sig"))
    except CommunisError:
        return None


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
