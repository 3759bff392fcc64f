"""Guess: a first manifest for a folder of your own files, from their names and content.

Everything that is inferred from names, headers and values is a guess, and stated in a remark, so
that it can be checked. The manifest loads at once if the folder has one of the usual layouts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from communis.core import disk
from communis.core.errors import CommunisError
from communis.data.own.columns import WORDS, FileGuess, file_format, guess_columns
from communis.data.own.joined import matches
from communis.data.own.manifest import KEYS, NAME, Column, Files
from communis.data.own.reading import dataset
from communis.data.own.tables import TEXT, read

KINDS = (TEXT, (".parquet",), (".npy",))
SENSOR = (
    "acc.*|gyr.*|mag.*|imu.*|hr|heart.*|bvp|ppg|eda|gsr|temp.*|ecg|eeg|emg|baro.*|pressure|light|"
    "orientation|quat.*|csi|rssi|labels?|annotations?"
)
SHORT = {"subject": "s|p|u", "trial": "t|r", "scene": "e", "session": "d", "label": "a"}
MOST_CLASSES = 100
UNSURE = "  # CHECK: a placeholder, as the files do not tell"


@dataclass(frozen=True)
class Names:
    """The pattern of the file names."""

    pattern: str
    sensors: tuple[str, ...] = ()  # values of {sensor}, if the pattern contains it

    def of(self, sensor: str) -> str:
        """Returns the pattern of the files of one sensor."""
        return self.pattern.replace("{sensor}", sensor)

    def has(self, key: str) -> bool:
        """Returns whether the pattern contains a key in braces."""
        return f"{{{key}}}" in self.pattern


def write_manifest(folder: Path, force: bool = False) -> tuple[Path, list[str]]:
    """Writes `communis.toml` into a folder; returns its path, and remarks about assumptions and
    about what must be checked."""
    path = folder / NAME
    if not folder.is_dir():
        raise CommunisError(f"{folder}: no such folder")
    if path.exists() and not force:
        raise CommunisError(f"{path}: exists already; --force overwrites it")
    files = _files(folder)
    how = file_format(files[0])
    first = guess_columns(files[0], how)
    names = _names([file.relative_to(folder).as_posix() for file in files], first.keys)
    remarks = [f"files are found by the pattern {names.pattern!r}"]
    guesses: dict[str, FileGuess] = {}
    for sensor in names.sensors or ("",):
        example, _ = matches(folder, names.of(sensor))[0]
        guess = guess_columns(example, how)
        guesses[sensor] = guess
        remarks += [f"{sensor}: {remark}" if sensor else remark for remark in guess.remarks]
    text = "\n".join(_lines(folder, names, guesses, how, remarks)) + "\n"
    disk.write_file(path, text.encode())  # replaces a link, in a folder from elsewhere
    try:
        for _ in dataset(folder).recordings:
            break
    except CommunisError as error:
        remarks.append(f"CHECK: the files cannot be read with it yet: {error}")
    return path, remarks


def _files(folder: Path) -> list[Path]:
    """Returns the data files of the most frequent kind."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    by_kind = []
    for suffixes in KINDS:
        by_kind.append([path for path in paths if path.suffix.lower() in suffixes])
    most = max(by_kind, key=len)
    if not most:
        raise CommunisError(f"{folder}: no CSV, Parquet or NPY file in it or in its folders")
    suffixes_of_most = [path.suffix for path in most]
    usual = max(suffixes_of_most, key=suffixes_of_most.count)
    return [path for path in most if path.suffix == usual]


def _names(paths: Sequence[str], columns: Mapping[str, Column]) -> Names:
    """Returns a pattern for all paths: equal parts stay, different parts become a name in braces or
    a star."""
    suffix = Path(paths[0]).suffix
    if len({path.count("/") for path in paths}) > 1:
        return Names(f"**/*{suffix}")
    taken = set(columns)
    parts = []
    sensors: tuple[str, ...] = ()
    levels = zip(*(path.removesuffix(suffix).split("/") for path in paths), strict=True)
    for level in levels:
        slots = _slots(level)
        part = ""
        for i, values in enumerate(slots):
            different = set(values)
            sensor_values = _sensors(values)
            if len(different) == 1:
                part += values[0]
            elif not sensors and len(sensor_values) > max(1, len(different) / 2):
                sensors = sensor_values
                part += "{sensor}"
            else:
                word_before = slots[i - 2][0] if i > 1 else ""
                key = _key(sorted(different), word_before, taken)
                taken.add(key)
                part += f"{{{key}}}" if key else "*"
        parts.append(part)
    return Names("/".join(parts) + suffix, sensors)


def _sensors(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({v for v in values if re.fullmatch(SENSOR, v.lower())}))


def _slots(level: Sequence[str]) -> list[tuple[str, ...]]:
    """Returns the words of all names of a level, and the separators between them, slot by slot; a
    single slot if the names have different separators."""
    split = [re.split(r"([_\-\s.]+)", name) for name in level]
    separators = {tuple(pieces[1::2]) for pieces in split}
    return list(zip(*split, strict=True)) if len(separators) == 1 else [tuple(level)]


def _key(values: Sequence[str], before: str, taken: set[str]) -> str:
    """Returns the key that the values of a slot seem to be; empty if there is none."""
    free = [key for key in (*KEYS, "label") if key not in taken]
    for key in free:
        words = f"(?:{WORDS[key]}|{SHORT[key]})"
        if all(re.fullmatch(words + r"\d+", v.lower()) for v in values):
            return key
        if re.fullmatch(WORDS[key], before.lower()):
            return key
    order = ["subject", "trial", "session"]
    if not all(re.fullmatch(r"[A-Za-z]?\d+", v) for v in values):
        order = ["subject"] if "label" in taken else ["label", "subject"]
    return next((key for key in order if key in free), "")


def _lines(
    folder: Path, names: Names, guesses: Mapping[str, FileGuess], how: Files, remarks: list[str]
) -> list[str]:
    """Returns the lines of the manifest, with a comment on everything that must be checked."""
    first = next(iter(guesses.values()))
    lines = [
        "# The content of the files in this folder, as guessed by `communis data init`: check it.",
        "[files]",
    ]
    if not names.sensors:
        lines.append(f"pattern = {_toml(names.pattern)}")
    if how != Files(header=how.header):
        lines.append(f"delimiter = {_toml(how.delimiter)}")
        lines.append(f"decimal = {_toml(how.decimal)}")
    if not how.header:
        lines.append("header = false  # columns are numbered from 0")
    if first.time is not None:
        lines.append(f"time = {_toml(first.time)}")
        lines.append(f"time_unit = {_toml(first.time_unit)}  # s, ms, us, ns or date")
    for sensor, guess in guesses.items():
        for name, part in guess.modalities.items():
            lines.append("")
            lines.append(f"[modalities.{_modality(sensor, name, guess)}]")
            lines += _place(names, sensor, guess, first)
            lines.append(f"columns = {_toml(part.columns)}")
            lines.append(f"rate = {part.rate:g}{'' if guess.time is not None else UNSURE}")
            lines.append(f"unit = {_toml(part.unit)}{UNSURE if part.unit == 'a.u.' else ''}")
    if any(line.endswith(UNSURE) and line.startswith("unit") for line in lines):
        remarks.append('CHECK unit: unit = "a.u." is a placeholder for an unknown unit')
    lines += _label(folder, names, guesses, how, remarks)
    for key in KEYS:
        if key in first.keys:
            lines += ["", f"[{key}]", f"column = {_toml(first.keys[key])}"]
            remarks.append(f"{key} is column {first.keys[key]!r}")
        elif key == "subject" and not names.has(key):
            lines += ["", "[subject]", f"value = 1{UNSURE}"]
            remarks.append("CHECK subject: neither columns nor names tell it; one is assumed")
    return lines


def _modality(sensor: str, name: str, guess: FileGuess) -> str:
    """Returns the name of a modality; `sensor` is the part of the file name that tells sensors
    apart."""
    if not sensor:
        return name
    full = sensor if len(guess.modalities) == 1 else f"{sensor}_{name}"
    return re.sub(r"\W", "_", full.lower())


def _place(names: Names, sensor: str, guess: FileGuess, first: FileGuess) -> list[str]:
    """Returns the lines for pattern and time of columns, if they differ from [files]."""
    lines = []
    if names.sensors:
        lines.append(f"pattern = {_toml(names.of(sensor))}")
    if guess.time is not None and guess.time != first.time:
        lines.append(f"time = {_toml(guess.time)}")
    return lines


def _label(
    folder: Path, names: Names, guesses: Mapping[str, FileGuess], how: Files, remarks: list[str]
) -> list[str]:
    """Returns the lines of [label]: from a column, from the pattern, or without classes if none
    were found."""
    first_sensor = next(iter(guesses))
    sensor = next((s for s, guess in guesses.items() if "label" in guess.keys), None)
    lines = ["", "[label]"]
    files = matches(folder, names.of(sensor or first_sensor))
    words: set[str] = set()
    if sensor is not None:
        guess = guesses[sensor]
        column = guess.keys["label"]
        for path, _ in files:
            words.update(read(path, how, words=[column]).words[column].words)
        lines.append(f"column = {_toml(column)}")
        lines += _place(names, sensor, guess, guesses[first_sensor])
        if not guess.modalities:
            lines.append(f"rate = {guess.rate:g}")
        remarks.append(f"the label is column {column!r} with {len(words)} classes")
    elif names.has("label"):
        words.update(values["label"] for _, values in files)
        remarks.append(f"the label is part of the file names, with {len(words)} classes")
    else:
        remarks.append("CHECK label: none was found; complete [label], or replace it by [target]")
        return [*lines, 'classes = []  # CHECK: none was found; add column = "..." too']
    if len(words) > MOST_CLASSES:
        remarks.append(f"CHECK label: {len(words)} classes are many; is it really the label?")
    ordered = sorted(words, key=_numbers_first)
    return [*lines, f"classes = {_toml(ordered)}  # their order gives the numbers, from 0"]


def _numbers_first(text: str) -> tuple[bool, int, str]:
    """Returns the key that sorts numbers by value, before other words."""
    is_number = text.isdigit()
    return not is_number, int(text) if is_number else 0, text


def _toml(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    return json.dumps(value, ensure_ascii=False)
