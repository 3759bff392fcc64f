"""Reading: the recordings of a folder that a manifest describes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Task
from communis.core.errors import CommunisError
from communis.core.tasks import Classification, Counting, Localisation, Pose
from communis.data.own.joined import Group, grouped, numbered
from communis.data.own.manifest import KEYS, Column, Label, Manifest, load
from communis.data.own.stretches import Tables, streams, stretches, target
from communis.data.own.tables import Table, read, word
from communis.data.own.units import unit_name
from communis.data.recordings.recording import UNLABELLED, Dataset, Recording

UNKNOWN = -2  # a word that the manifest does not list


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
    trials: Counter[tuple[int, ...]] = Counter()
    for group in groups:
        tables = {p: _read(path, p, manifest) for p, path in group.paths.items()}
        classes = _classes(group, tables, manifest)
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
            )


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
    return read(path, manifest.files, numbers, words, time)


def _class(text: str, label: Label) -> int:
    """Returns the number of a class; UNLABELLED for ignored words, UNKNOWN for all others."""
    classes = [word(c) for c in label.classes]
    if text in classes:
        return classes.index(text)
    ignored = [word(i) for i in label.ignore]
    return UNLABELLED if "*" in ignored or text in ignored else UNKNOWN


def _unknown(where: str, text: str, label: Label) -> CommunisError:
    classes = ", ".join(str(c) for c in label.classes)
    return CommunisError(
        f"{where}: {text!r} is not one of label.classes ({classes}); add it there, or to "
        "label.ignore if it is not a class"
    )


def _classes(group: Group, tables: Tables, manifest: Manifest) -> int | Array:
    """Returns the class of all files of a group, or the class or count of every row, or an empty
    array for other targets."""
    label = manifest.label
    if label and "label" in group.values:
        text = word(group.values["label"])
        if _class(text, label) == UNKNOWN:
            raise _unknown(str(group.first), text, label)
        return _class(text, label)
    goal = manifest.parts["label" if label else "target"]
    if goal.pattern not in tables:
        raise CommunisError(f"{group.first}: the file {goal.pattern} with its target is missing")
    table = tables[goal.pattern]
    column = goal.columns[0]
    if label:
        words = table.words[column].words
        codes = table.words[column].codes
        class_of = [_class(w, label) for w in words]
        class_of.append(UNLABELLED)  # for code -1, an empty cell
        classes = np.array(class_of)[codes]
        if (classes == UNKNOWN).any():
            row = int((classes == UNKNOWN).argmax())
            raise _unknown(table.at(row), words[codes[row]], label)
        return classes
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
