"""Labels: the class of a recording or of its time, from file names, JSON files or tables of
intervals."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.memory import room
from communis.data.own.joined import Group, glob, matches
from communis.data.own.manifest import NAME, Intervals, Json, Label, Manifest, placeholders
from communis.data.own.tables import Table, read, word
from communis.data.recordings.files import reading, shortened
from communis.data.recordings.recording import UNLABELLED

UNKNOWN = -2  # a word that the manifest does not list
Keys = tuple[tuple[str, str], ...]  # names in braces with their values


class Classes:
    """The numbers of classes by the words in files."""

    def __init__(self, label: Label) -> None:
        self._label = label
        self._ignored = {word(i) for i in label.ignore}
        self._numbers = {word(c): i for i, c in enumerate(label.classes)}
        for name, values in label.merge.items():
            number = self._numbers[word(name)]
            self._numbers |= {word(value): number for value in values}

    def number(self, text: str) -> int:
        """Returns the number of a class; UNLABELLED for ignored words, UNKNOWN for all others."""
        if text in self._numbers:
            return self._numbers[text]
        return UNLABELLED if "*" in self._ignored or text in self._ignored else UNKNOWN

    def required(self, where: object, text: str) -> int:
        """Returns the number of a class, or UNLABELLED; other words are refused."""
        number = self.number(text)
        if number == UNKNOWN:
            classes = ", ".join(str(c) for c in self._label.classes)
            raise CommunisError(
                f"{where}: {shortened(text)!r} is not one of label.classes ({classes}); add it "
                "there or to label.merge, or to label.ignore if it is not a class"
            )
        return number


@dataclass(frozen=True)
class Spans:
    """Intervals of one recording with their classes, sorted and without overlaps."""

    begins: Array  # seconds
    ends: Array
    classes: Array
    rest: int  # class of all other time
    relative: bool

    def at(self, times: Array) -> Array:
        """Returns the class at every time."""
        if not len(self.begins):
            return np.full(len(times), self.rest)
        last = np.searchsorted(self.begins, times, "right") - 1
        inside = (last >= 0) & (times < self.ends[np.maximum(last, 0)])
        return np.where(inside, self.classes[np.maximum(last, 0)], self.rest)


class Tools:
    """The classes of recordings from the tools of [label]; the files are read once."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        assert manifest.label is not None
        self._folder = folder
        self._manifest = manifest
        self._label = manifest.label
        self.classes = Classes(manifest.label)

    def of(self, group: Group) -> int | Spans | None:
        """Returns the class of a recording, or the classes of its time; None if the label is in a
        column of its files."""
        label = self._label
        if "label" in group.values:
            return self.classes.required(group.first, word(group.values["label"]))
        if label.files:
            return self._by_name(group)
        if label.json:
            return self._by_json(group, label.json)
        if label.intervals:
            return self._by_intervals(group, label.intervals)
        return None

    def _by_name(self, group: Group) -> int:
        paths = [path.relative_to(self._folder).as_posix() for path in group.paths.values()]
        names = [
            name
            for name, patterns in self._name_patterns.items()
            if any(pattern.fullmatch(path) for pattern in patterns for path in paths)
        ]
        if len(names) > 1:
            raise CommunisError(
                f"{group.first}: label.files has it under {' and '.join(names)}; make the patterns "
                "more precise"
            )
        if names:
            return self.classes.required(group.first, names[0])
        if "*" in self._label.ignore:
            return UNLABELLED
        raise CommunisError(
            f"{group.first}: no pattern of label.files matches it; add one, or exclude the file "
            "with files.exclude"
        )

    @cached_property
    def _name_patterns(self) -> Mapping[str, Sequence[Any]]:
        return {name: [glob(p) for p in patterns] for name, patterns in self._label.files.items()}

    def _by_json(self, group: Group, tool: Json) -> int:
        if placeholders(tool.pattern):
            path = self._side_of(group, tool.pattern, "label.json")
            value = self._json(path)
        else:
            path = self._side
            table = self._json(path)
            if not isinstance(table, Mapping):
                raise CommunisError(f"{path}: expected an object whose keys are names of files")
            name = next((name for name in self._names(group) if name in table), None)
            if name is None:
                raise self._not_listed(group, path)
            value = table[name]
        for key in tool.key.split(".") if tool.key else ():
            if not isinstance(value, Mapping) or key not in value:
                raise CommunisError(
                    f"{path}: no {tool.key!r} for {group.first}; see label.json.key"
                )
            value = value[key]
        if not isinstance(value, str | int | float):
            raise CommunisError(
                f"{path}: the class of {group.first} is no text and no number; say where it is "
                "with label.json.key"
            )
        return self.classes.required(path, word(value))

    def _by_intervals(self, group: Group, tool: Intervals) -> int | Spans:
        if placeholders(tool.pattern):
            path = self._side_of(group, tool.pattern, "label.intervals")
            rows = _Rows.of(path, self._manifest, tool)
            chosen = np.arange(rows.count)
        else:
            path = self._side
            rows = self._all_rows
            names = [name for name in self._names(group) if name in self._rows_by_name]
            chosen = self._rows_by_name[names[0]] if names else np.zeros(0, np.int64)
        numbers = [
            self.classes.required(rows.table.at(row), text) for row, text in rows.labels(chosen)
        ]
        if tool.start is not None:
            rest = UNLABELLED
            if tool.rest is not None:
                rest = self.classes.required(self._folder / NAME, word(tool.rest))
            return _spans(rows, chosen, numbers, rest, tool.relative)
        if not numbers:
            raise self._not_listed(group, path)
        if len(set(numbers)) > 1:
            raise CommunisError(
                f"{rows.table.at(int(chosen[0]))}: several classes for {group.first}; name the "
                "columns label.intervals.start and end, or correct the table"
            )
        return numbers[0]

    @cached_property
    def _all_rows(self) -> _Rows:
        assert self._label.intervals is not None
        return _Rows.of(self._side, self._manifest, self._label.intervals)

    @cached_property
    def _rows_by_name(self) -> dict[str, Array]:
        """The rows of the table for all recordings, by the name of the recording."""
        assert self._label.intervals is not None
        column = self._label.intervals.file
        assert column is not None
        coded = self._all_rows.table.words[column]
        order = np.argsort(coded.codes, kind="stable")
        bounds = np.searchsorted(coded.codes[order], np.arange(len(coded.words) + 1))
        return {text: order[bounds[i] : bounds[i + 1]] for i, text in enumerate(coded.words)}

    @cached_property
    def _side(self) -> Path:
        """The one file for all recordings."""
        pattern = self._manifest.side_pattern
        files = matches(self._folder, pattern)
        if len(files) != 1:
            raise CommunisError(
                f"{self._folder / NAME}: {len(files)} files match {pattern!r}, expected one with "
                "the labels of all recordings, or names in braces in the pattern"
            )
        return files[0][0]

    def _side_of(self, group: Group, pattern: str, where: str) -> Path:
        """The file with the labels of one recording."""
        key = tuple((name, group.values[name]) for name in sorted(placeholders(pattern)))
        if key not in self._sides:
            raise CommunisError(
                f"{group.first}: no file with its labels matches {where}.pattern {pattern!r}; add "
                "it, or exclude the recording with files.exclude"
            )
        return self._sides[key]

    @cached_property
    def _sides(self) -> Mapping[Keys, Path]:
        files: dict[Keys, Path] = {}
        pattern = self._manifest.side_pattern
        for path, values in matches(self._folder, pattern):
            key = tuple(sorted(values.items()))
            if key in files:
                raise CommunisError(
                    f"{self._folder / NAME}: {files[key]} and {path} both match {pattern!r}; put "
                    "the part in which they differ in braces, or exclude one"
                )
            files[key] = path
        return files

    def _json(self, path: Path) -> Any:
        if path != self._read_json[0]:
            with reading(path, "JSON file", "correct it"):
                room(path, 10 * path.stat().st_size, "its content")
                self._read_json = path, json.loads(path.read_text("utf-8-sig"))
        return self._read_json[1]

    _read_json: tuple[Path | None, Any] = (None, None)  # the last one

    def _names(self, group: Group) -> Iterator[str]:
        """Yields what a table may call a recording: paths, names, both without the ending."""
        for path in group.paths.values():
            place = path.relative_to(self._folder)
            yield place.as_posix()
            yield path.name
            yield place.with_suffix("").as_posix()
            yield path.stem
            yield f"{self._folder.name}/{place.as_posix()}"

    def _not_listed(self, group: Group, path: Path) -> CommunisError:
        place = group.first.relative_to(self._folder).as_posix()
        return CommunisError(
            f"{path}: has no entry {place!r}, {group.first.name!r} or {group.first.stem!r}; add "
            "one, or exclude the file with files.exclude"
        )


@dataclass(frozen=True)
class _Rows:
    """A table of intervals."""

    table: Table
    begins: Array | None
    ends: Array | None
    tool: Intervals

    @property
    def count(self) -> int:
        return self.table.rows

    @staticmethod
    def of(path: Path, manifest: Manifest, tool: Intervals) -> _Rows:
        files = manifest.files
        how = replace(
            files,
            delimiter=tool.delimiter or files.delimiter,
            header=isinstance(tool.column, str),
            skip=0,
            time_unit=files.time_unit if tool.unit == "files" else tool.unit,
        )
        words = [tool.column] if tool.file is None else [tool.column, tool.file]
        table = read(path, how, words=words, time=tool.start)
        ends = None if tool.end is None else read(path, how, time=tool.end).time
        return _Rows(table, table.time, ends, tool)

    def labels(self, rows: Array) -> Iterator[tuple[int, str]]:
        """Yields these rows with the words of their classes."""
        coded = self.table.words[self.tool.column]
        for row in rows.tolist():
            if coded.codes[row] < 0:
                raise CommunisError(
                    f"{self.table.at(row)}: no class in {self.tool.column!r}; complete or remove "
                    "the row"
                )
            yield row, coded.words[coded.codes[row]]


def _spans(rows: _Rows, chosen: Array, numbers: list[int], rest: int, relative: bool) -> Spans:
    """Returns the intervals of these rows; those that overlap must be of one class."""
    assert rows.begins is not None
    assert rows.ends is not None
    begins: list[float] = []
    ends: list[float] = []
    classes: list[int] = []
    firsts = rows.begins[chosen]
    lasts = rows.ends[chosen]
    for i in np.argsort(firsts, kind="stable").tolist():
        begin = float(firsts[i])
        end = float(lasts[i])
        where = rows.table.at(int(chosen[i]))
        if end < begin:
            raise CommunisError(f"{where}: the interval ends before it begins")
        if ends and begin < ends[-1]:
            if numbers[i] != classes[-1]:
                raise CommunisError(
                    f"{where}: the interval overlaps with one of another class; correct the table"
                )
            ends[-1] = max(ends[-1], end)
            continue
        begins.append(begin)
        ends.append(end)
        classes.append(numbers[i])
    return Spans(np.array(begins), np.array(ends), np.array(classes, np.int64), rest, relative)
