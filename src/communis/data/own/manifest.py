"""Manifest: the description of a folder of your own files, `communis.toml`.

    [files]
    pattern = "{subject}/{label}_{trial}.csv"  # CSV, Parquet or NPY files below this folder
    time = "timestamp"                         # without it, rows are spaced evenly by the rate
    [modalities.wrist_acc]
    columns = ["ax", "ay", "az"]               # names, or numbers from 0
    rate = 50
    unit = "g"
    [label]
    classes = ["walk", "sit"]                  # from {label}; otherwise column = "activity"

A modality, label or target that is stored in separate files has its own `pattern` with the same
names in braces. Files whose values in braces are equal form one recording.
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
KEYS = ("subject", "scene", "session", "trial")  # numbers that identify a recording
Column = str | int


@dataclass(frozen=True)
class Files:
    """The place and the format of the files."""

    pattern: str = ""  # path below the folder; * matches anything, {subject} etc. give the value
    delimiter: str = ","  # character between columns
    decimal: str = "."  # decimal mark of numbers
    header: bool = True  # whether the first line after `skip` names the columns
    skip: int = 0  # lines above the header, or above the first row
    time: Column | None = None  # column of time stamps
    time_unit: Literal["s", "ms", "us", "ns", "date"] = "s"  # unit of the time stamps
    gap: float = 0.0  # seconds without samples that are not interpolated; 0: three samples
    pause: float = 10.0  # seconds without samples after which a new recording begins


@dataclass(frozen=True)
class Part:
    """Columns at one rate: a modality, the label or the target."""

    columns: tuple[Column, ...] = ()  # names, or numbers from 0
    rate: float = 0.0  # Hz
    unit: str = "a.u."
    pattern: str = ""  # empty: that of [files]
    time: Column | None = None  # None: that of [files]


@dataclass(frozen=True)
class Label:
    """The class: in a column, or as {label} in the pattern."""

    classes: tuple[Column, ...]  # values in the files; their order gives the class numbers
    names: tuple[str, ...] = ()  # names to show; empty: the classes themselves
    ignore: tuple[Column, ...] = ()  # values without a class; "*": all values not in `classes`
    column: Column | None = None  # column of the class; None: {label} in the pattern
    rate: float = 0.0  # Hz; 0: that of the modalities in the same files
    pattern: str = ""  # empty: that of [files]
    time: Column | None = None  # None: that of [files]


@dataclass(frozen=True)
class Target:
    """A target that is not a class."""

    kind: Literal["position", "pose", "count"]
    columns: tuple[Column, ...]  # names, or numbers from 0
    most: int = 0  # the largest count
    rate: float = 0.0  # Hz; 0: that of the modalities in the same files
    pattern: str = ""  # empty: that of [files]
    time: Column | None = None  # None: that of [files]


@dataclass(frozen=True)
class Key:
    """The origin of a number such as the subject's, if it is not in the pattern."""

    column: Column | None = None
    value: int | None = None  # one value for all files


@dataclass(frozen=True)
class Manifest:
    """A checked manifest."""

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
            given = "none" if self.label is None else "both"
            raise CommunisError(f"expected one of [label] and [target], found {given}")
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
        """All columns by manifest key; missing patterns, times and rates are filled in."""
        parts = {f"modalities.{name}": part for name, part in self.modalities.items()}
        goal = self.target or self.label
        columns = self.target.columns if self.target else ()
        if self.label and self.label.column is not None:
            columns = (self.label.column,)
        if goal and columns:
            key = "target" if self.target else "label"
            parts[key] = Part(columns, goal.rate, "", goal.pattern, goal.time)
        placed = {}
        for key, part in parts.items():
            pattern = part.pattern or self.files.pattern
            time = self.files.time if part.time is None else part.time
            placed[key] = replace(part, pattern=pattern, time=time)
        return {key: _with_rate(part, placed.values()) for key, part in placed.items()}

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.pattern for part in self.parts.values()))

    @property
    def placeholders(self) -> set[str]:
        return set(re.findall(r"{(\w*)}", self.patterns[0]))

    def key(self, name: str) -> Key:
        key: Key = getattr(self, name)
        return key

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
                raise CommunisError(
                    f"{key}: a name has letters, digits and _ only, and begins with no digit"
                )
            if not nameable(name):
                raise CommunisError(f"{key}: models reserve this name; call it {name}_")
            part = self.parts[key]
            for column in part.columns:
                other = owners.setdefault((part.pattern, column), key)
                if other != key or part.columns.count(column) > 1:
                    raise CommunisError(
                        f"{key}.columns: {column!r} is already in {other}.columns; a column may be "
                        "named once, in one modality"
                    )

    def _check_patterns(self) -> None:
        for pattern in self.patterns:
            names = re.findall(r"{(.*?)}", pattern)
            for name in names:
                if name not in (*KEYS, "label"):
                    choices = ", ".join(f"{{{k}}}" for k in (*KEYS, "label"))
                    raise CommunisError(f"pattern {pattern!r}: {{{name}}} is not one of {choices}")
            if set(names) != self.placeholders:
                raise CommunisError(
                    f"patterns {self.patterns[0]!r} and {pattern!r}: files are joined by the names "
                    "in braces, which must be the same in both"
                )
            if pattern.startswith("/") or ".." in pattern.split("/") or ":" in pattern:
                raise CommunisError(
                    f"pattern {pattern!r}: files must be below the manifest's folder"
                )
        if len({part.time is None for part in self.parts.values()}) > 1:
            raise CommunisError(
                "time: expected a column for all files of a recording, or for none of them"
            )

    def _check_goal(self) -> None:
        target = self.target
        label = self.label
        if target:
            if target.kind == "pose" and len(target.columns) % 3:
                raise CommunisError(
                    f"target.columns: a pose needs x, y and z of every joint, got "
                    f"{len(target.columns)} columns"
                )
            if target.kind == "count" and (len(target.columns) != 1 or target.most < 1):
                raise CommunisError(
                    "target: a count needs one column, and `most`, the largest count, of at least 1"
                )
        if label:
            if ("label" in self.placeholders) == (label.column is not None):
                given = "none" if label.column is None else "both"
                raise CommunisError(
                    "label: expected one of label.column and {label} in the pattern, found "
                    f"{given} of them"
                )
            if len(label.classes) < 2 or len(set(label.classes)) < len(label.classes):
                raise CommunisError("label.classes: expected at least two, all different")
            if len(label.names) not in (0, len(label.classes)):
                raise CommunisError(
                    f"label.names: expected none, or one for each of the {len(label.classes)} "
                    f"classes, got {len(label.names)}"
                )

    def _check_key(self, name: str) -> None:
        key = self.key(name)
        origins = (key.column is not None) + (key.value is not None) + (name in self.placeholders)
        if origins > 1:
            raise CommunisError(
                f"{name}: expected only one of {name}.column, {name}.value and {{{name}}} in the "
                f"pattern, found {origins}"
            )
        if name == "subject" and not origins:
            raise CommunisError(
                "subject: set subject.column, put {subject} into the pattern, or set "
                "subject.value = 1 if all files are of one person"
            )


def load(folder: Path) -> Manifest:
    """Returns the manifest in a folder."""
    path = folder / NAME
    if not path.is_file():
        raise CommunisError(
            f"{folder}: there is no {NAME} that describes the files; `communis data init {folder}` "
            "writes a first one"
        )
    with reading(path, "manifest", "docs/reference/data/own.md lists its keys"):
        table = tomllib.loads(path.read_text("utf-8"))
        try:
            manifest: Manifest = build(Manifest, table, "")
        except CommunisError as error:
            raise CommunisError(f"{path}: {error}") from None
    return manifest


def _with_rate(part: Part, others: Iterable[Part]) -> Part:
    """Returns the part with a rate: a label without one gets that of the modalities in the same
    files."""
    in_same_files = (other.rate for other in others if other.pattern == part.pattern)
    return replace(part, rate=part.rate or max(in_same_files, default=0.0))


def _check_part(key: str, part: Part, files: Files) -> None:
    if not part.columns:
        raise CommunisError(f"{key}.columns: expected at least one column, got none")
    if not part.rate > 0:
        raise CommunisError(
            f"{key}.rate: expected a positive number of samples per second, got {part.rate:g}"
        )
    if not part.pattern:
        raise CommunisError(f"files.pattern and {key}.pattern are missing: set one of them")
    if len(files.delimiter) != 1 or len(files.decimal) != 1:
        raise CommunisError(
            "files.delimiter and files.decimal: expected one character each, got "
            f"{files.delimiter!r} and {files.decimal!r}"
        )
