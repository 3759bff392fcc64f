"""Guess: a first manifest for a folder of your own files, from their names and content.

Everything that is inferred from values, or from names that do not say it, is a guess: its line and
a remark have the word CHECK. The manifest loads at once if the folder has one of the usual layouts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from statistics import median

from communis.core import disk
from communis.core.errors import CommunisError
from communis.data.own.columns import FileGuess
from communis.data.own.filenames import Names, split
from communis.data.own.joined import glob, matches
from communis.data.own.manifest import KEYS, NAME, Files, Part
from communis.data.own.reading import dataset
from communis.data.own.sidefiles import Beside, beside
from communis.data.own.survey import FEWEST_ROWS, Kind, Progress, Survey, looked_at, survey
from communis.data.own.tables import read
from communis.data.recordings.recording import nameable

MOST_CLASSES = 100
MOST_REMARKS = 5  # about side tables
MOST_EXCLUDED = 20  # lines of files.exclude
TRIED = 3  # recordings that are read with the new manifest
ALIKE = 1.1  # rates of the files of a sensor that differ by a larger factor are a doubt
PLACEHOLDER = "a placeholder, as the files do not tell"


def _silent(what: str, done: int, total: int) -> None:
    """Shows no progress."""


@dataclass
class _Draft:
    """Lines of the manifest, and remarks about it."""

    lines: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, line: str, doubt: str = "") -> None:
        """Adds a line; with a doubt, it is marked."""
        self.lines.append(f"{line}  # CHECK: {doubt}" if doubt else line)

    def doubt(self, about: str, text: str) -> None:
        remark = f"CHECK {about}: {text}"
        if remark not in self.remarks:
            self.remarks.append(remark)


@dataclass(frozen=True)
class _Sensor:
    """The files of one sensor, or of all sensors, and what their columns are."""

    name: str  # the part of the file names that tells it; empty: one file has all
    pattern: str
    files: tuple[str, ...]
    how: Files
    guess: FileGuess
    rates: tuple[float, ...]

    @property
    def rate(self) -> float:
        return float(f"{median(self.rates):.4g}")

    def modality(self, name: str) -> str:
        """Returns the name of one of its modalities."""
        if not self.name:
            return name
        full = self.name if len(self.guess.modalities) == 1 else f"{self.name}_{name}"
        return _identifier(full)


def write_manifest(
    folder: Path,
    force: bool = False,
    anonymous: bool = False,
    progress: Progress = _silent,
) -> tuple[Path, list[str]]:
    """Writes `communis.toml` into a folder; returns its path, and remarks about assumptions and
    about what must be checked. anonymous: results show no names of subjects."""
    path = folder / NAME
    if not folder.is_dir():
        raise CommunisError(f"{folder}: no such folder")
    if path.exists() and not force:
        raise CommunisError(f"{path}: exists already; --force overwrites it")
    found = survey(folder, progress)
    draft = _Draft()
    _write(draft, folder, found, anonymous, progress)
    text = "\n".join(draft.lines) + "\n"
    disk.write_file(path, text.encode())  # replaces a link, in a folder from elsewhere
    progress("reading with the manifest", 0, 1)
    try:
        for _ in islice(dataset(folder).recordings, TRIED):
            pass
    except CommunisError as error:
        draft.remarks.append(f"CHECK: the files cannot be read with it yet: {error}")
    progress("reading with the manifest", 1, 1)
    return path, draft.remarks


def _write(draft: _Draft, folder: Path, found: Survey, anonymous: bool, progress: Progress) -> None:
    """Fills the draft."""
    main = found.recordings[0]
    sources = _label_sources(found)
    names = _names(found, labelled=bool(sources))
    sensors = _sensors(folder, found.recordings, names, progress)
    main_sensor = max(sensors, key=lambda sensor: len(sensor.guess.modalities))
    sides = beside(folder, names, main_sensor.guess, found)
    draft.remarks.append(f"files are found by the pattern {names.pattern!r}")
    _remark_names(draft, names)
    excluded = _excluded(found, names, sensors, sides)
    first = sensors[0].guess
    draft.add("# The content of the files in this folder, as guessed by `communis data init`.")
    draft.add("# Check the lines with CHECK; docs/reference/data/own.md explains all keys.")
    if anonymous:
        draft.add("anonymous = true  # results show numbers instead of the subjects' own names")
    _write_files(draft, names, main.how, sensors, excluded)
    for sensor in sensors:
        _write_modalities(draft, sensor, first, bool(names.kinds))
    if not any(sensor.guess.modalities for sensor in sensors):
        draft.doubt("modalities", "no columns of numbers were found; describe them by hand")
    _write_label(draft, folder, names, sensors, sides, progress)
    for key in KEYS:
        _write_key(draft, key, names, first)
    _remark_others(draft, found, sides, names, sensors)


def _label_sources(found: Survey) -> list[Kind]:
    """Returns the tables that may hold the label, so that file names need not."""
    with_column = [k for k in found.recordings if "label" in k.guess.keys]
    sure = [kind for kind in with_column if "label" not in kind.guess.by_values]
    return [*sure, *found.labels]


def _names(found: Survey, labelled: bool) -> Names:
    """Returns the pattern of the names of recordings, without kinds of files that it does not tell
    apart."""
    kinds = found.recordings
    taken = {key for key in kinds[0].guess.keys if key != "label"}
    while True:
        files = [(file, i) for i, kind in enumerate(kinds) for file in kind.files]
        files.sort()
        names = split([f for f, _ in files], [i for _, i in files], taken, labelled)
        if len(kinds) == 1 or len(set(names.kinds.values())) == len(kinds):
            return names
        kinds = kinds[:-1]


def _sensors(
    folder: Path, kinds: Sequence[Kind], names: Names, progress: Progress
) -> list[_Sensor]:
    """Returns the files of every sensor with their columns."""
    if not names.kinds:
        guesses = looked_at(folder, names.files, kinds[0].how)
        return [_sensor("", names.pattern, names.files, kinds[0], kinds[0].guess, guesses)]
    by_value: dict[tuple[str, ...], list[str]] = {}
    for file, value in zip(names.files, names.by_file, strict=True):
        if value in names.kinds:
            by_value.setdefault(value, []).append(file)
    sensors = []
    for number, (value, files) in enumerate(sorted(by_value.items())):
        progress("comparing files", number, len(by_value))
        kind = kinds[names.kinds[value]]
        guesses = looked_at(folder, files, kind.how)
        first = guesses[0] if guesses else kind.guess
        sensors.append(_sensor("_".join(value), names.of(value), files, kind, first, guesses))
    progress("comparing files", len(by_value), len(by_value))
    return sensors


def _sensor(
    name: str,
    pattern: str,
    files: Sequence[str],
    kind: Kind,
    guess: FileGuess,
    others: Sequence[FileGuess],
) -> _Sensor:
    rates = tuple(other.rate for other in others if other.rows > 1) or (guess.rate,)
    return _Sensor(name, pattern, tuple(files), kind.how, guess, rates)


def _remark_names(draft: _Draft, names: Names) -> None:
    for slot in names.slots:
        if slot.key and not slot.sure:
            some = ", ".join(slot.distinct[:4])
            draft.doubt(slot.key, f"taken from the file names: {some}")
        elif not slot.key:
            some = ", ".join(slot.distinct[:3])
            draft.remarks.append(f"a part of the file names is not used: {some}")
    if names.left:
        draft.doubt("files", f"{len(names.left)} lie elsewhere and are not read: {names.left[0]}")
    if "**" in names.pattern:
        draft.doubt("files", "they lie at different depths, so their names tell nothing")


def _excluded(found: Survey, names: Names, sensors: Sequence[_Sensor], sides: Beside) -> list[str]:
    """Returns patterns of the files that match a pattern but are no recordings: names that no
    recording has, or paths."""
    patterns = [glob(re.sub(r"{\w+}", "*", sensor.pattern)) for sensor in sensors]
    recordings = {file for sensor in sensors for file in sensor.files}
    used = glob(re.sub(r"{\w+}", "*", sides.pattern)) if sides.pattern else None
    others = [*found.others, *(f for kind in found.recordings for f in kind.files)]
    paths = [
        file
        for file in dict.fromkeys(others)
        if file not in recordings
        and any(pattern.fullmatch(file) for pattern in patterns)
        and not (used and used.fullmatch(file))
    ]
    names_of_recordings = {Path(file).name for file in recordings}
    wanted = [p if Path(p).name in names_of_recordings else Path(p).name for p in paths]
    return sorted(dict.fromkeys(wanted))


def _write_files(
    draft: _Draft,
    names: Names,
    how: Files,
    sensors: Sequence[_Sensor],
    excluded: Sequence[str],
) -> None:
    draft.add("")
    draft.add("[files]")
    unsure = dict.fromkeys(slot.key for slot in names.slots if slot.key and not slot.sure)
    doubt = f"are {', '.join(f'{{{key}}}' for key in unsure)} what they seem?" if unsure else ""
    if not names.kinds:
        draft.add(f"pattern = {_toml(names.pattern)}", doubt)
    elif doubt:
        draft.add(f"# names of files: {_toml(names.pattern)}", doubt)
    if excluded:
        draft.add(f"exclude = {_toml(excluded[:MOST_EXCLUDED])}", "are these no recordings?")
    if len(excluded) > MOST_EXCLUDED:
        draft.doubt("exclude", f"{len(excluded) - MOST_EXCLUDED} more files may be no recordings")
    if (how.delimiter, how.decimal) != (",", "."):
        draft.add(f"delimiter = {_toml(how.delimiter)}")
        draft.add(f"decimal = {_toml(how.decimal)}")
    if how.skip:
        draft.add(f"skip = {how.skip}", "lines above the table")
    if how.comment:
        draft.add(f"comment = {_toml(how.comment)}")
    if not how.header:
        draft.add("header = false  # columns are numbered from 0")
    first = sensors[0].guess
    if first.time is None:
        return
    timing = first.timing
    doubt = "" if isinstance(first.time, str) else "a guess: it rises in even steps"
    draft.add(f"time = {_toml(first.time)}", doubt)
    if doubt:
        draft.doubt("time", f"column {first.time} is {doubt}")
    unit_doubt = "" if timing.unit_named else "a guess by the size of the steps"
    draft.add(f"time_unit = {_toml(timing.unit)}", unit_doubt)
    if unit_doubt:
        draft.doubt("time_unit", f"{timing.unit} is {unit_doubt}; the rates follow from it")
    batched = [sensor for sensor in sensors if sensor.guess.timing.batched]
    if batched:
        text = "many rows share a time stamp; is it that of the first or of the last of them?"
        draft.add('batches = "first"', text)
        draft.doubt("batches", f"{text} Rates are counted over the time between them")


def _write_modalities(draft: _Draft, sensor: _Sensor, first: FileGuess, apart: bool) -> None:
    guess = sensor.guess
    timed = guess.time is not None
    for name, part in guess.modalities.items():
        modality = sensor.modality(name)
        draft.add("")
        draft.add(f"[modalities.{modality if modality.isascii() else _toml(modality)}]")
        if apart:
            draft.add(f"pattern = {_toml(sensor.pattern)}")
            if guess.time is not None and guess.time != first.time:
                draft.add(f"time = {_toml(guess.time)}")
        draft.add(f"columns = {_toml(part.columns)}")
        draft.add(f"rate = {_rate(sensor, part):g}", _doubt_about_rate(sensor))
        doubt = guess.doubtful.get(name, "")
        draft.add(f"unit = {_toml(part.unit)}", doubt)
        if doubt:
            unit = "" if part.unit == "a.u." else f"{part.unit} is "
            draft.doubt("unit", f"of {modality}: {unit}{doubt}")
    label = f"{sensor.name}: " if sensor.name else ""
    draft.remarks += [f"{label}{remark}" for remark in guess.remarks]
    if doubt := _doubt_about_rate(sensor):
        draft.doubt("rate", f"{label}{doubt}")
    elif timed:
        time = f"time is column {guess.time!r} in {guess.timing.unit}"
        draft.remarks.append(f"{label}{time}, about {sensor.rate:g} samples a second")


def _rate(sensor: _Sensor, part: Part) -> float:
    """Returns the rate of a modality; one that is slower than its file keeps its share."""
    share = part.rate / sensor.guess.rate
    return float(f"{share * sensor.rate:.4g}")


def _doubt_about_rate(sensor: _Sensor) -> str:
    if sensor.guess.time is None:
        return PLACEHOLDER
    low = min(sensor.rates)
    high = max(sensor.rates)
    if high > ALIKE * low:
        return f"files have {low:g} to {high:g} Hz"
    return ""


def _write_label(
    draft: _Draft,
    folder: Path,
    names: Names,
    sensors: Sequence[_Sensor],
    sides: Beside,
    progress: Progress,
) -> None:
    """Writes [label]: from a column, from other files, from the pattern, or without classes if none
    were found."""
    draft.add("")
    draft.add("[label]")
    of_columns = [s for s in sensors if "label" in s.guess.keys]
    sure = [s for s in of_columns if "label" not in s.guess.by_values]
    if sure or (of_columns and not sides.pattern and not names.has("label")):
        _write_column(draft, folder, (sure or of_columns)[0], sensors, progress)
    elif sides.pattern:
        _write_classes(draft, sides.words)
        draft.lines += sides.lines
        draft.remarks.append(f"the label is in {sides.pattern!r}, with {len(sides.words)} classes")
        for doubt in sides.doubts:
            draft.doubt("label", doubt)
    elif names.has("label"):
        # As the pattern reads them, which need not be as they were split.
        words = {values["label"] for _, values in matches(folder, sensors[0].pattern)}
        _write_classes(draft, words)
        draft.remarks.append(f"the label is part of the file names, with {len(words)} classes")
    else:
        draft.doubt("label", "none was found; complete [label], or replace it by [target]")
        draft.add("classes = []", 'none was found; add column = "...", or another origin')


def _write_column(
    draft: _Draft,
    folder: Path,
    sensor: _Sensor,
    sensors: Sequence[_Sensor],
    progress: Progress,
) -> None:
    guess = sensor.guess
    column = guess.keys["label"]
    words: set[str] = set()
    unread: list[str] = []
    for number, file in enumerate(sensor.files):
        progress("reading classes", number, len(sensor.files))
        try:
            words.update(read(folder / file, sensor.how, words=[column]).words[column].words)
        except CommunisError as error:
            if len(sensor.files) == 1:
                raise
            unread.append(str(error))
    progress("reading classes", len(sensor.files), len(sensor.files))
    doubt = "a guess: it holds few different values" if "label" in guess.by_values else ""
    draft.add(f"column = {_toml(column)}", doubt)
    if sensor.name:
        draft.add(f"pattern = {_toml(sensor.pattern)}")
        if guess.time is not None and guess.time != sensors[0].guess.time:
            draft.add(f"time = {_toml(guess.time)}")
    if not guess.modalities:
        draft.add(f"rate = {sensor.rate:g}")
    _write_classes(draft, words)
    draft.remarks.append(f"the label is column {column!r} with {len(words)} classes")
    if doubt:
        draft.doubt("label", f"column {column!r}: {doubt}")
    if unread:
        draft.doubt("files", f"{len(unread)} cannot be read: {unread[0]}")


def _write_classes(draft: _Draft, words: Collection[str]) -> None:
    doubt = ""
    if len(words) > MOST_CLASSES:
        doubt = f"{len(words)} classes are many"
        draft.doubt("label", f"{doubt}; is it really the label?")
    draft.add(f"classes = {_toml(sorted(words, key=_numbers_first))}", doubt)


def _write_key(draft: _Draft, key: str, names: Names, first: FileGuess) -> None:
    if key in first.keys:
        draft.add("")
        draft.add(f"[{key}]")
        draft.add(f"column = {_toml(first.keys[key])}")
        draft.remarks.append(f"{key} is column {first.keys[key]!r}")
    elif key == "subject" and not names.has(key):
        draft.add("")
        draft.add("[subject]")
        draft.add("value = 1", PLACEHOLDER)
        draft.doubt("subject", "neither columns nor names tell it; one is assumed")


def _remark_others(
    draft: _Draft, found: Survey, sides: Beside, names: Names, sensors: Sequence[_Sensor]
) -> None:
    """Remarks on tables that are no recordings, so that nothing is left out in silence."""
    used = set(sides.files)
    beside = (*found.side, *found.labels)
    if len(beside) > MOST_REMARKS:
        draft.doubt("files", f"{len(beside) - MOST_REMARKS} more kinds of files are not read")
    for kind in beside[:MOST_REMARKS]:
        files = [file for file in kind.files if file not in used]
        if files:
            count = f" and {len(files) - 1} more" if len(files) > 1 else ""
            columns = ", ".join(kind.columns[:6])
            is_small = kind.guess.rows < FEWEST_ROWS
            what = "a side table" if is_small else "other columns than those of the recordings"
            draft.doubt("files", f"{files[0]}{count} not read: {what} ({columns})")
    known = {file for sensor in sensors for file in sensor.files} | set(names.left)
    left = [file for kind in found.recordings for file in kind.files if file not in known]
    if left:
        count = f" and {len(left) - 1} more" if len(left) > 1 else ""
        draft.doubt("files", f"{left[0]}{count} not read: their names fit no sensor")
    if found.unread:
        file, why = found.unread[0]
        draft.doubt("files", f"{len(found.unread)} are no tables that can be read: {file}: {why}")


def _numbers_first(text: str) -> tuple[bool, int, str]:
    """Returns the key that sorts numbers by value, before other words."""
    is_number = text.isdigit()
    return not is_number, int(text) if is_number else 0, text


def _identifier(text: str) -> str:
    name = re.sub(r"\W+", "_", text.lower())
    name = name if name.isidentifier() else f"sensor_{name}"
    return name if nameable(name) else f"{name}_"


def _toml(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    return json.dumps(value, ensure_ascii=False)
