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
names in braces. Files whose values in braces are equal form one recording. All paths and patterns
are relative to the folder of the manifest.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from communis.core.errors import CommunisError
from communis.core.settings import build
from communis.data.recordings.files import reading
from communis.data.recordings.recording import nameable

NAME = "communis.toml"
KEYS = ("subject", "scene", "session", "trial")  # numbers that identify a recording
Column = str | int
TimeUnit = Literal["s", "ms", "us", "ns", "date"]


@dataclass(frozen=True)
class Files:
    """The place and the format of the files."""

    pattern: str = ""  # path below the folder; * matches anything, {subject} etc. give the value
    exclude: tuple[str, ...] = ()  # paths and patterns of files that are not read
    delimiter: str = ","  # character between columns
    decimal: str = "."  # decimal mark of numbers
    header: bool = True  # whether the first line after `skip` names the columns
    skip: int = 0  # lines above the header, or above the first row
    comment: str = ""  # lines at the top that are empty or begin with this are left out as well
    time: Column | None = None  # column of time stamps
    time_unit: TimeUnit = "s"  # unit of the time stamps
    # Several rows share a time stamp, because a device sends them together: which of them it
    # belongs to. The rows are spread evenly until the next time stamp, or from the last one.
    batches: Literal["no", "first", "last"] = "no"
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
class Intervals:
    """Tables whose rows say from when to when which class was there."""

    pattern: str  # one table per recording, with the names in braces of [files]; or one for all
    column: Column = "label"  # column of the class
    start: Column | None = None  # columns of begin and end; without them a row is of the whole file
    end: Column | None = None
    file: Column | None = None  # in one table for all: the column of the recording's path or name
    # Unit of begin and end; "files": files.time_unit.
    unit: Literal["files", "s", "ms", "us", "ns", "date"] = "files"
    relative: bool = False  # whether begin and end count from the first row of the recording
    rest: Column | None = None  # class of the time outside of all intervals; None: none
    delimiter: str = ""  # empty: that of [files]


@dataclass(frozen=True)
class Json:
    """JSON files with the class of whole recordings."""

    # One file per recording, with the names in braces of [files]; or one for all, an object whose
    # keys are paths or names of recordings.
    pattern: str
    key: str = ""  # where the class is: "activity", or "trial.activity"; empty: the value itself


@dataclass(frozen=True)
class Label:
    """The class: in a column, as {label} in the pattern, or from one of the tools."""

    classes: tuple[Column, ...]  # values in the files; their order gives the class numbers
    names: tuple[str, ...] = ()  # names to show; empty: the classes themselves
    ignore: tuple[Column, ...] = ()  # values without a class; "*": all values not in `classes`
    merge: dict[str, tuple[Column, ...]] = field(default_factory=dict)  # class -> values in files
    column: Column | None = None  # column of the class; None: {label} in the pattern
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)  # class -> patterns of names
    json: Json | None = None  # the class from JSON files
    intervals: Intervals | None = None  # the class from tables of intervals
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
    anonymous: bool = False  # whether results show numbers instead of the subjects' own names

    def __post_init__(self) -> None:
        if not self.modalities:
            raise CommunisError("modalities: there are none; describe one as [modalities.NAME]")
        if self.label and self.target:
            raise CommunisError("expected one of [label] and [target], found both")
        for key, part in self.parts.items():
            _check_part(key, part, self.files)
        self._check_files()
        self._check_modalities()
        self._check_patterns()
        self._check_goal()
        for key in KEYS:
            self._check_key(key)

    @cached_property
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

    @cached_property
    def patterns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.pattern for part in self.parts.values()))

    @cached_property
    def placeholders(self) -> set[str]:
        return placeholders(self.patterns[0])

    @property
    def side_pattern(self) -> str:
        """The pattern of the label's own files that are no parts of a recording; empty if there are
        none."""
        tool = self.label and (self.label.intervals or self.label.json)
        return tool.pattern if tool else ""

    @property
    def unlabelled(self) -> Manifest:
        """The same for recordings of one person without labels."""
        one = Key() if "subject" in self.placeholders else Key(value=1)
        no = Key()
        return replace(self, label=None, target=None, subject=one, scene=no, session=no, trial=no)

    def key(self, name: str) -> Key:
        key: Key = getattr(self, name)
        return key

    def _check_files(self) -> None:
        for key in ("skip", "gap", "pause"):
            value = getattr(self.files, key)
            if value < 0:
                raise CommunisError(f"files.{key}: expected 0 or more, got {value}")
        for pattern in self.files.exclude:
            _refuse_outside(pattern, "files.exclude")

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
            _refuse_outside(pattern, "pattern")
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
            self._check_label(label)
            if len(label.classes) < 2 or len(set(label.classes)) < len(label.classes):
                raise CommunisError("label.classes: expected at least two, all different")
            if len(label.names) not in (0, len(label.classes)):
                raise CommunisError(
                    f"label.names: expected none, or one for each of the {len(label.classes)} "
                    f"classes, got {len(label.names)}"
                )

    def _check_label(self, label: Label) -> None:
        origins = {
            "label.column": label.column is not None,
            "{label} in the pattern": "label" in self.placeholders,
            "label.files": bool(label.files),
            "label.json": label.json is not None,
            "label.intervals": label.intervals is not None,
        }
        given = [origin for origin, there in origins.items() if there]
        if len(given) != 1:
            raise CommunisError(
                f"label: expected one of {', '.join(origins)}, found "
                f"{' and '.join(given) or 'none of them'}"
            )
        classes = [str(c) for c in label.classes]
        owners: dict[str, str] = {}
        for name, values in label.merge.items():
            for value in map(str, values):
                other = owners.setdefault(value, name)
                if other != name:
                    raise CommunisError(f"label.merge: {value!r} is in {other} and in {name}")
                if value in classes and value != name:
                    raise CommunisError(
                        f"label.merge.{name}: {value!r} is one of label.classes; remove it there"
                    )
        for table, names in (("merge", label.merge), ("files", label.files)):
            strange = [name for name in names if name not in classes]
            if strange:
                raise CommunisError(
                    f"label.{table}.{strange[0]}: not one of label.classes ({', '.join(classes)})"
                )
        for patterns in label.files.values():
            for pattern in patterns:
                _refuse_outside(pattern, "label.files")
        if self.side_pattern:
            self._check_side(label, self.side_pattern)

    def _check_side(self, label: Label, pattern: str) -> None:
        """Refuses a pattern of tables or JSON files that cannot be joined with the recordings."""
        where = "label.intervals" if label.intervals else "label.json"
        _refuse_outside(pattern, f"{where}.pattern")
        names = set(re.findall(r"{(.*?)}", pattern))
        if not names <= self.placeholders:
            listed = ", ".join(f"{{{name}}}" for name in sorted(names))
            known = ", ".join(f"{{{name}}}" for name in sorted(self.placeholders)) or "none"
            raise CommunisError(
                f"{where}.pattern {pattern!r}: its names in braces, {listed}, must be in the "
                f"pattern of the recordings, too, which has {known}"
            )
        intervals = label.intervals
        if intervals is None:
            return
        if (intervals.start is None) != (intervals.end is None):
            raise CommunisError("label.intervals: expected both of start and end, or none of them")
        if not names and intervals.file is None:
            raise CommunisError(
                "label.intervals: one table for all recordings needs `file`, the column with the "
                "path or the name of the recording; for one table per recording, put names in "
                "braces into its pattern"
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


def placeholders(pattern: str) -> set[str]:
    """Returns the names in braces of a pattern."""
    return set(re.findall(r"{(\w*)}", pattern))


def _refuse_outside(pattern: str, where: str) -> None:
    if pattern.startswith("/") or ".." in pattern.split("/") or ":" in pattern:
        raise CommunisError(f"{where} {pattern!r}: files must be below the manifest's folder")


def load(folder: Path, labelled: bool = True) -> Manifest:
    """Returns the manifest in a folder. labelled: it must say what is to be predicted."""
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
        if labelled and not (manifest.label or manifest.target):
            raise CommunisError(f"{path}: expected one of [label] and [target], found none")
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
