"""Reading: the recordings of a folder that a manifest describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Task
from communis.core.errors import CommunisError, readable
from communis.core.tasks import Classification, Counting, Localisation, Pose
from communis.data.own.batches import spread
from communis.data.own.joined import Group, grouped, new_groups, numbered
from communis.data.own.labels import UNKNOWN, Spans, Tools
from communis.data.own.manifest import KEYS, Column, Manifest, load
from communis.data.own.stretches import Tables, streams, stretches, target
from communis.data.own.tables import Table, header, read, word
from communis.data.own.units import unit_name
from communis.data.recordings.recording import UNLABELLED, Dataset, Recording

NAMED = ("subject", "scene")  # keys whose words are shown in results: they can be clients
LONGEST_NAME = 40  # characters of a subject's or scene's name in results


def dataset(folder: Path) -> Dataset:
    """Returns the dataset in a folder with a manifest."""
    manifest = load(folder)
    names: tuple[str, ...] = ()
    if manifest.label:
        names = manifest.label.names or tuple(map(str, manifest.label.classes))
    return Dataset(
        _recordings(folder, manifest),
        _task(manifest),
        names,
        {name: unit_name(part.unit, name) for name, part in manifest.modalities.items()},
    )


def _task(manifest: Manifest) -> Task:
    target = manifest.target
    if target is None:
        return Classification(len(manifest.label.classes) if manifest.label else 0)
    if target.kind == "count":
        return Counting(target.most + 1)
    columns = len(target.columns)
    return Pose(columns // 3) if target.kind == "pose" else Localisation(columns)


def _recordings(folder: Path, manifest: Manifest) -> Iterator[Recording]:
    groups = grouped(folder, manifest)
    numbers = {key: numbered(_all_words(groups, manifest, key)) for key in KEYS}
    tools = Tools(folder, manifest) if manifest.label else None
    trials: Counter[tuple[int, ...]] = Counter()
    for group in groups:
        tables = {p: _read(path, p, manifest) for p, path in group.paths.items()}
        classes = _classes(group, tables, manifest, tools)
        if isinstance(classes, int) and classes == UNLABELLED:
            continue
        path = group.first.relative_to(folder).as_posix()
        for count, (words, rows) in enumerate(stretches(tables, manifest), start=1):
            values = {**group.values, **words}
            ids = {}
            for key in KEYS:
                if key in values:
                    ids[key] = numbers[key][word(values[key])]
                else:
                    ids[key] = manifest.key(key).value or 0
            owner = (ids["subject"], ids["scene"], ids["session"])
            if "trial" not in values and manifest.trial.value is None:
                ids["trial"] = trials[owner]
                trials[owner] += 1
            yield Recording(
                streams(tables, rows, manifest),
                classes if isinstance(classes, int) else target(tables, rows, manifest, classes),
                **ids,
                name=path if count == 1 else f"{path}#{count}",
                names={} if manifest.anonymous else _names(values),
            )


def unlabelled(files: Sequence[Path], manifest: Manifest) -> Iterator[Recording]:
    """Yields the recordings in new files, which need no labels and may lack sensors. Their class is
    0, whatever it is."""
    for group in new_groups(files, manifest):
        known = _of_these_files(group, manifest.unlabelled)
        tables = {p: _read(path, p, known) for p, path in group.paths.items()}
        for count, (_, rows) in enumerate(stretches(tables, known), start=1):
            name = str(group.first) if count == 1 else f"{group.first}#{count}"
            yield Recording(streams(tables, rows, known), 0, subject=0, name=name)


def _of_these_files(group: Group, manifest: Manifest) -> Manifest:
    """Returns the manifest of the modalities whose columns are in these files."""
    there = {}
    lacking = []
    for name, part in manifest.modalities.items():
        path = group.paths.get(manifest.parts[f"modalities.{name}"].pattern)
        if path is None:
            continue
        columns = header(path, manifest.files)
        absent = [c for c in part.columns if isinstance(c, str) and c not in columns]
        if absent:
            lacking.append(f"{name} ({', '.join(absent)})")
        else:
            there[name] = part
    if not there:
        raise CommunisError(
            f"{group.first}: has the columns of no sensor; missing are those of "
            f"{'; '.join(lacking)}"
        )
    return replace(manifest, modalities=there)


def _names(values: Mapping[str, str]) -> dict[str, str]:
    """Returns the own names of subject and scene, short and printable: they are shown in results,
    and may come from files of strangers."""
    there = {key: word(values[key]) for key in NAMED if key in values}
    return {key: readable(text, LONGEST_NAME) for key, text in there.items()}


def _all_words(groups: Sequence[Group], manifest: Manifest, key: str) -> Iterator[str]:
    """Yields every value of a key in the dataset, because all values are numbered together."""
    column = manifest.key(key).column
    for group in groups:
        if key in group.values:
            yield word(group.values[key])
        elif column is not None:
            for path in group.paths.values():
                yield from read(path, manifest.files, words=[column]).words[column].words


def _read(path: Path, pattern: str, manifest: Manifest) -> Table:
    """Returns the columns of one file that the manifest names."""
    parts = {key: part for key, part in manifest.parts.items() if part.pattern == pattern}
    numbers: list[Column] = []
    for key, part in parts.items():
        if key != "label":
            numbers += part.columns
    words = [column for key in KEYS if (column := manifest.key(key).column) is not None]
    if "label" in parts:
        words += parts["label"].columns
    time = next(iter(parts.values())).time
    table = read(path, manifest.files, numbers, words, time)
    if table.time is None or manifest.files.batches == "no":
        return table
    rate = max(part.rate for part in parts.values())
    return replace(table, time=spread(table.time, rate, manifest.files.batches))


def _classes(
    group: Group, tables: Tables, manifest: Manifest, tools: Tools | None
) -> int | Array | Spans:
    """Returns the class of all files of a group, the classes of its time, the class or count of
    every row, or an empty array for other targets."""
    if tools:
        classes = tools.of(group)
        if classes is not None:
            return classes
    goal = manifest.parts["label" if tools else "target"]
    if goal.pattern not in tables:
        raise CommunisError(f"{group.first}: the file {goal.pattern} with its target is missing")
    table = tables[goal.pattern]
    column = goal.columns[0]
    if tools:
        words = table.words[column].words
        codes = table.words[column].codes
        class_of = [tools.classes.number(text) for text in words]
        class_of.append(UNLABELLED)  # for code -1, an empty cell
        of_rows = np.array(class_of)[codes]
        if (of_rows == UNKNOWN).any():
            row = int((of_rows == UNKNOWN).argmax())
            tools.classes.required(table.at(row), words[codes[row]])
        return of_rows
    if manifest.target and manifest.target.kind == "count":
        return _counts(table, table.numbers[column], manifest.target.most)
    return np.zeros(0, np.int64)


def _counts(table: Table, values: Array, most: int) -> Array:
    """Returns the counts of all rows; UNLABELLED for empty cells."""
    counts = np.where(np.isnan(values), UNLABELLED, values)
    wrong = (counts != np.rint(counts)) | (counts > most) | (counts < UNLABELLED)
    if wrong.any():
        row = int(wrong.argmax())
        raise CommunisError(
            f"{table.at(row)}: {values[row]:g} is not a count from 0 to target.most = {most}"
        )
    return counts.astype(np.int64)
