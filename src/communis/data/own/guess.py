"""Guess: a first manifest for a folder of one's own, by looking at its files.

Whatever is taken from names, headers and values is a guess, and said in a remark, so that it can be
checked. The manifest loads at once if the folder has one of the usual layouts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from communis.core.errors import CommunisError
from communis.data.own.columns import WORDS, Look, look, written
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
UNSURE = "  # CHECK: the files do not tell"


@dataclass(frozen=True)
class Names:
    """What the names of the files tell."""

    pattern: str
    sensors: tuple[str, ...] = ()  # values of {sensor} in the pattern, if that is in it

    def of(self, sensor: str) -> str:
        return self.pattern.replace("{sensor}", sensor)

    def has(self, key: str) -> bool:
        return f"{{{key}}}" in self.pattern


def write_manifest(folder: Path, force: bool = False) -> tuple[Path, list[str]]:
    """Writes `communis.toml` into a folder; returns its path, and what was assumed or must be
    checked."""
    path = folder / NAME
    if not folder.is_dir():
        raise CommunisError(f"{folder}: no such folder")
    if path.exists() and not force:
        raise CommunisError(f"{path}: there is one already; --force writes it anew")
    files = _files(folder)
    how = written(files[0])
    first = look(files[0], how)
    names = _names([file.relative_to(folder).as_posix() for file in files], first.keys)
    looks = {s: look(matches(folder, names.of(s))[0][0], how) for s in names.sensors or ("",)}
    remarks = [f"files are found by the pattern {names.pattern!r}"]
    remarks += [
        f"{sensor}: {r}" if sensor else r for sensor, seen in looks.items() for r in seen.remarks
    ]
    path.write_text("\n".join(_lines(folder, names, looks, how, remarks)) + "\n", "utf-8")
    try:
        for _ in dataset(folder).recordings:
            break
    except CommunisError as error:
        remarks.append(f"CHECK: it cannot be read yet: {error}")
    return path, remarks


def _files(folder: Path) -> list[Path]:
    """The data files, of the kind of which there are most."""
    there = sorted(p for p in folder.rglob("*") if p.is_file() and not p.name.startswith("."))
    kinds = [[p for p in there if p.suffix.lower() in kind] for kind in KINDS]
    most = max(kinds, key=len)
    if not most:
        raise CommunisError(f"{folder}: no CSV, Parquet or NPY file in it or in its folders")
    endings = [p.suffix for p in most]
    return [p for p in most if p.suffix == max(endings, key=endings.count)]


def _names(paths: Sequence[str], columns: Mapping[str, Column]) -> Names:
    """A pattern for all paths: what is the same in all stays, what differs gets a name in braces or
    a star."""
    if len({path.count("/") for path in paths}) > 1:
        return Names("**/*" + Path(paths[0]).suffix)
    suffix = Path(paths[0]).suffix
    taken, pattern = set(columns), []
    sensors: tuple[str, ...] = ()
    levels = zip(*(path.removesuffix(suffix).split("/") for path in paths), strict=True)
    slots = [_slots(level) for level in levels]
    for slot in slots:
        made = ""
        for i, values in enumerate(slot):
            word = slot[i - 2][0] if i > 1 else ""
            if len(set(values)) == 1:
                made += values[0]
            elif not sensors and len(found := _sensors(values)) > max(1, len(set(values)) / 2):
                sensors = found
                made += "{sensor}"
            else:
                key = _key(sorted(set(values)), word, taken)
                taken.add(key)
                made += f"{{{key}}}" if key else "*"
        pattern.append(made)
    return Names("/".join(pattern) + suffix, sensors)


def _sensors(values: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted({v for v in values if re.fullmatch(SENSOR, v.lower())}))


def _slots(level: Sequence[str]) -> list[tuple[str, ...]]:
    """Words and what is between them, if all names of a level are built alike; else one slot."""
    pieces = [re.split(r"([_\-\s.]+)", name) for name in level]
    alike = len({(len(p), *p[1::2]) for p in pieces}) == 1
    return list(zip(*pieces, strict=True)) if alike else [tuple(level)]


def _key(values: Sequence[str], before: str, taken: set[str]) -> str:
    """Which key the values of a slot seem to be; empty: none."""
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
    folder: Path, names: Names, looks: Mapping[str, Look], how: Files, remarks: list[str]
) -> list[str]:
    """The manifest, with a comment wherever something is to be checked."""
    first = next(iter(looks.values()))
    lines = ["# What the files of this folder hold. `communis data init` has guessed: check it."]
    lines += ["[files]", *([] if names.sensors else [f"pattern = {_toml(names.pattern)}"])]
    if how != Files(header=how.header):
        lines += [f"delimiter = {_toml(how.delimiter)}", f"decimal = {_toml(how.decimal)}"]
    if not how.header:
        lines.append("header = false  # columns are numbered from 0")
    if first.time is not None:
        lines.append(f"time = {_toml(first.time)}")
        lines.append(f"time_unit = {_toml(first.time_unit)}  # s, ms, us, ns or date")
    for sensor, seen in looks.items():
        for name, part in seen.modalities.items():
            alone = len(seen.modalities) == 1
            named = re.sub(r"\W", "_", (sensor if alone else f"{sensor}_{name}").lower())
            lines += ["", f"[modalities.{named if sensor else name}]"]
            lines += _place(names, sensor, seen, first)
            lines.append(f"columns = {_toml(part.columns)}")
            lines.append(f"rate = {part.rate:g}{'' if seen.time is not None else UNSURE}")
            lines.append(f"unit = {_toml(part.unit)}{UNSURE if part.unit == 'a.u.' else ''}")
    if any(line.endswith(UNSURE) and line.startswith("unit") for line in lines):
        remarks.append("CHECK unit: where it says a.u., the files do not tell")
    lines += _label(folder, names, looks, how, remarks)
    for key in KEYS:
        if key in first.keys:
            lines += ["", f"[{key}]", f"column = {_toml(first.keys[key])}"]
            remarks.append(f"{key} is column {first.keys[key]!r}")
        elif key == "subject" and not names.has(key):
            lines += ["", "[subject]", f"value = 1{UNSURE}"]
            remarks.append("CHECK subject: neither columns nor names tell; one is assumed")
    return lines


def _place(names: Names, sensor: str, seen: Look, first: Look) -> list[str]:
    """Where columns are, if not where [files] says."""
    lines = [f"pattern = {_toml(names.of(sensor))}"] if names.sensors else []
    own_time = seen.time is not None and seen.time != first.time
    return [*lines, f"time = {_toml(seen.time)}"] if own_time else lines


def _label(
    folder: Path, names: Names, looks: Mapping[str, Look], how: Files, remarks: list[str]
) -> list[str]:
    """The label's table: from a column, from the pattern, or a comment that there is none."""
    sensor = next((s for s, seen in looks.items() if "label" in seen.keys), None)
    lines = ["", "[label]"]
    there = matches(folder, names.of(sensor or next(iter(looks))))
    if sensor is not None:
        seen, first = looks[sensor], next(iter(looks.values()))
        column = seen.keys["label"]
        words = {
            w for path, _ in there for w in read(path, how, words=[column]).words[column].words
        }
        lines += [f"column = {_toml(column)}", *_place(names, sensor, seen, first)]
        lines += [] if seen.modalities else [f"rate = {seen.rate:g}"]
        remarks.append(f"the label is column {column!r} with {len(words)} classes")
    elif names.has("label"):
        words = {values["label"] for _, values in there}
        remarks.append(f"the label is part of the file names, with {len(words)} classes")
    else:
        remarks.append("CHECK label: none was found; complete [label], or replace it by [target]")
        return [*lines, 'classes = []  # CHECK: none was found; add column = "..." too']
    if len(words) > MOST_CLASSES:
        remarks.append(f"CHECK label: {len(words)} classes are many; is it really the label?")
    ordered = sorted(words, key=lambda w: (not w.isdigit(), int(w) if w.isdigit() else 0, w))
    return [*lines, f"classes = {_toml(ordered)}  # their order numbers them from 0"]


def _toml(value: object) -> str:
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(v) for v in value)}]"
    return json.dumps(value, ensure_ascii=False)
