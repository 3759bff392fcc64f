"""Manifest: what `communis.toml` says of a folder of one's own files.

    [files]
    pattern = "{subject}/{label}_{trial}.csv"  # CSV, Parquet or NPY files below this folder
    time = "timestamp"                         # without it, rows follow each other at the rate
    [modalities.wrist_acc]
    columns = ["ax", "ay", "az"]               # names, or numbers from 0
    rate = 50
    unit = "g"
    [label]
    classes = ["walk", "sit"]                  # here from {label}; else column = "activity"

A modality, label or target in files of its own has a `pattern` of its own with the same names in
braces: the files in which these agree make up one recording.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from communis.core.errors import CommunisError
from communis.core.settings import build
from communis.data.recordings.files import reading
from communis.data.recordings.recording import nameable

NAME = "communis.toml"
KEYS = ("subject", "scene", "session", "trial")  # what recordings are told apart by
Column = str | int


@dataclass(frozen=True)
class Files:
    """Where the files are and how they are written."""

    pattern: str = ""  # below the folder; * stands for anything, {subject} etc. take the value
    delimiter: str = ","
    decimal: str = "."  # mark in numbers
    header: bool = True  # does a line name the columns?
    skip: int = 0  # lines above it
    time: Column | None = None  # column of time stamps
    time_unit: Literal["s", "ms", "us", "ns", "date"] = "s"
    gap: float = 0.0  # seconds without samples that are not interpolated; 0: three samples
    pause: float = 10.0  # seconds without samples after which a new recording begins


@dataclass(frozen=True)
class Part:
    """Columns at one rate: a modality, the label or the target."""

    columns: tuple[Column, ...] = ()
    rate: float = 0.0  # Hz
    unit: str = "a.u."
    pattern: str = ""  # empty: that of [files]
    time: Column | None = None  # None: that of [files]


@dataclass(frozen=True)
class Label:
    """Which class it is: in a column, or as {label} in the pattern."""

    classes: tuple[Column, ...]  # as they are written in the files; their order numbers them
    names: tuple[str, ...] = ()  # for people; empty: the classes themselves
    ignore: tuple[Column, ...] = ()  # other values that mean no class; "*": all others
    column: Column | None = None
    rate: float = 0.0
    pattern: str = ""
    time: Column | None = None


@dataclass(frozen=True)
class Target:
    """What is to be predicted where that is not a class."""

    kind: Literal["position", "pose", "count"]
    columns: tuple[Column, ...]
    most: int = 0  # the largest count
    rate: float = 0.0
    pattern: str = ""
    time: Column | None = None


@dataclass(frozen=True)
class Key:
    """Where a number such as the subject's comes from, if not from the pattern."""

    column: Column | None = None
    value: int | None = None


@dataclass(frozen=True)
class Manifest:
    modalities: dict[str, Part]
    files: Files = field(default_factory=Files)
    label: Label | None = None
    target: Target | None = None
    subject: Key = field(default_factory=Key)
    scene: Key = field(default_factory=Key)
    session: Key = field(default_factory=Key)
    trial: Key = field(default_factory=Key)

    def __post_init__(self) -> None:
        if not self.modalities:
            raise CommunisError("modalities: there are none; describe one as [modalities.NAME]")
        if (self.label is None) == (self.target is None):
            raise CommunisError("one of [label] and [target] is needed, and not both")
        for key, part in self.parts.items():
            _check_part(key, part, self.files)
        self._check_files()
        self._check_modalities()
        self._check_patterns()
        self._check_goal()
        for key in KEYS:
            self._check_key(key)

    @property
    def parts(self) -> dict[str, Part]:
        """All columns by manifest key, with pattern, time and rate filled in."""
        found = {f"modalities.{name}": part for name, part in self.modalities.items()}
        goal = self.target or self.label
        columns = self.target.columns if self.target else ()
        if self.label and self.label.column is not None:
            columns = (self.label.column,)
        if goal and columns:
            key = "target" if self.target else "label"
            found[key] = Part(columns, goal.rate, "", goal.pattern, goal.time)
        default = self.files
        placed = {
            key: replace(
                part,
                pattern=part.pattern or default.pattern,
                time=default.time if part.time is None else part.time,
            )
            for key, part in found.items()
        }
        return {key: _rated(part, placed.values()) for key, part in placed.items()}

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.pattern for part in self.parts.values()))

    @property
    def placeholders(self) -> set[str]:
        return set(re.findall(r"{(\w*)}", self.patterns[0]))

    def key(self, name: str) -> Key:
        found: Key = getattr(self, name)
        return found

    def _check_files(self) -> None:
        for key in ("skip", "gap", "pause"):
            value = getattr(self.files, key)
            if value < 0:
                raise CommunisError(f"files.{key}: expected 0 or more, got {value}")

    def _check_modalities(self) -> None:
        owners: dict[tuple[str, Column], str] = {}
        for name in self.modalities:
            key = f"modalities.{name}"
            if not name.isidentifier():
                raise CommunisError(f"{key}: only letters, digits and _ make a name")
            if not nameable(name):
                raise CommunisError(f"{key}: models use this name themselves; call it {name}_")
            part = self.parts[key]
            for column in part.columns:
                other = owners.setdefault((part.pattern, column), key)
                if other != key or part.columns.count(column) > 1:
                    raise CommunisError(
                        f"{key}.columns: {column!r} is in {other}.columns already; a column "
                        "belongs to one modality, once"
                    )

    def _check_patterns(self) -> None:
        for pattern in self.patterns:
            found = re.findall(r"{(.*?)}", pattern)
            for name in found:
                if name not in (*KEYS, "label"):
                    choices = ", ".join(f"{{{k}}}" for k in (*KEYS, "label"))
                    raise CommunisError(f"pattern {pattern!r}: {{{name}}} is none of {choices}")
            if set(found) != self.placeholders:
                raise CommunisError(
                    f"patterns {self.patterns[0]!r} and {pattern!r}: files are joined by what is "
                    "in braces, which must be the same in both"
                )
            if pattern.startswith("/") or ".." in pattern.split("/") or ":" in pattern:
                raise CommunisError(f"pattern {pattern!r}: must lie below the manifest's folder")
        if len({part.time is None for part in self.parts.values()}) > 1:
            raise CommunisError("time: needed for all files of a recording, or for none")

    def _check_goal(self) -> None:
        target, label = self.target, self.label
        if target:
            if target.kind == "pose" and len(target.columns) % 3:
                raise CommunisError("target.columns: a pose has x, y and z of every joint")
            if target.kind == "count" and (len(target.columns) != 1 or target.most < 1):
                raise CommunisError("target: a count is one column; `most` is the largest count")
        if label:
            if ("label" in self.placeholders) == (label.column is not None):
                raise CommunisError(
                    "label: set label.column or have {label} in the pattern, one of the two"
                )
            if len(label.classes) < 2 or len(set(label.classes)) < len(label.classes):
                raise CommunisError("label.classes: two or more, all different")
            if len(label.names) not in (0, len(label.classes)):
                raise CommunisError("label.names: as many as label.classes, or none")

    def _check_key(self, name: str) -> None:
        key = self.key(name)
        given = (key.column is not None) + (key.value is not None) + (name in self.placeholders)
        if given > 1:
            raise CommunisError(f"{name}: from a column, as a value or from the pattern, not twice")
        if name == "subject" and not given:
            raise CommunisError(
                "subject: set subject.column, have {subject} in the pattern, or set "
                "subject.value = 1 if all is of one person"
            )


def load(folder: Path) -> Manifest:
    """The manifest in a folder."""
    path = folder / NAME
    if not path.is_file():
        raise CommunisError(
            f"{folder}: no {NAME} that says what the files hold; `communis data init {folder}` "
            "writes a first one"
        )
    with reading(path, "manifest", "docs/reference/data/own.md has its keys"):
        table = tomllib.loads(path.read_text("utf-8"))
        try:
            manifest: Manifest = build(Manifest, table, "")
        except CommunisError as error:
            raise CommunisError(f"{path}: {error}") from None
    return manifest


def _rated(part: Part, others: Iterable[Part]) -> Part:
    """A label without a rate has that of the modalities in the same files."""
    rate = part.rate or max((o.rate for o in others if o.pattern == part.pattern), default=0.0)
    return replace(part, rate=rate)


def _check_part(key: str, part: Part, files: Files) -> None:
    if not part.columns:
        raise CommunisError(f"{key}.columns: at least one column is needed")
    if not part.rate > 0:
        raise CommunisError(f"{key}.rate: a positive number of samples per second is needed")
    if not part.pattern:
        raise CommunisError(f"files.pattern is missing, and so is {key}.pattern")
    if len(files.delimiter) != 1 or len(files.decimal) != 1:
        raise CommunisError("files.delimiter and files.decimal: one character each")
