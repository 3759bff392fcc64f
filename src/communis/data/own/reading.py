"""Reading: the recordings of a folder, as its manifest describes them."""

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
from communis.data.own.manifest import KEYS, Label, Manifest, load
from communis.data.own.stretches import Tables, streams, stretches, target
from communis.data.own.tables import Table, read, word
from communis.data.own.units import unit_name
from communis.data.recordings.recording import UNLABELLED, Dataset, Recording

UNKNOWN = -2  # a word that the manifest does not list


def dataset(folder: Path) -> Dataset:
    manifest = load(folder)
    label = manifest.label
    return Dataset(
        _recordings(folder, manifest),
        _task(manifest),
        tuple(label.names or map(str, label.classes)) if label else (),
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
        for count, (words, rows) in enumerate(stretches(tables, manifest), start=1):
            found = {key: word(text) for key, text in {**group.values, **words}.items()}
            ids = {key: manifest.key(key).value or 0 for key in KEYS}
            ids |= {key: numbers[key][found[key]] for key in KEYS if key in found}
            owner = (ids["subject"], ids["scene"], ids["session"])
            if "trial" not in found and manifest.trial.value is None:
                ids["trial"] = trials[owner]
                trials[owner] += 1
            path = group.first.relative_to(folder).as_posix()
            yield Recording(
                streams(tables, rows, manifest),
                classes if isinstance(classes, int) else target(tables, rows, manifest, classes),
                **ids,
                name=path if count == 1 else f"{path}#{count}",
            )


def _all_words(groups: Sequence[Group], manifest: Manifest, key: str) -> Iterator[str]:
    """Every value of a key in the dataset: they are numbered together."""
    column = manifest.key(key).column
    for group in groups:
        if key in group.values:
            yield word(group.values[key])
        elif column is not None:
            for path in group.paths.values():
                yield from read(path, manifest.files, words=[column]).words[column].words


def _read(path: Path, pattern: str, manifest: Manifest) -> Table:
    """All that the manifest wants of one file."""
    parts = {key: part for key, part in manifest.parts.items() if part.pattern == pattern}
    numbers = [c for key, part in parts.items() if key != "label" for c in part.columns]
    words = [c for c in (manifest.key(key).column for key in KEYS) if c is not None]
    words += parts["label"].columns if "label" in parts else ()
    return read(path, manifest.files, numbers, words, next(iter(parts.values())).time)


def _class(text: str, label: Label) -> int:
    """The number of a class; UNLABELLED for what is ignored, UNKNOWN for anything else."""
    classes = [word(c) for c in label.classes]
    if text in classes:
        return classes.index(text)
    return UNLABELLED if {"*", text} & {word(i) for i in label.ignore} else UNKNOWN


def _unknown(where: str, text: str, label: Label) -> CommunisError:
    classes = ", ".join(str(c) for c in label.classes)
    return CommunisError(
        f"{where}: {text!r} is not one of label.classes ({classes}); add it there, or to "
        "label.ignore if it means no class"
    )


def _classes(group: Group, tables: Tables, manifest: Manifest) -> int | Array:
    """The class of all these files, or the class or count of every row (none for other targets)."""
    label = manifest.label
    if label and "label" in group.values:
        text = word(group.values["label"])
        if _class(text, label) == UNKNOWN:
            raise _unknown(str(group.first), text, label)
        return _class(text, label)
    goal = manifest.parts["label" if label else "target"]
    if goal.pattern not in tables:
        raise CommunisError(f"{group.first}: the file {goal.pattern} with its target is missing")
    table, column = tables[goal.pattern], goal.columns[0]
    if label:
        words, codes = table.words[column].words, table.words[column].codes
        found = np.array([*(_class(w, label) for w in words), UNLABELLED])[codes]
        if (found == UNKNOWN).any():
            row = int((found == UNKNOWN).argmax())
            raise _unknown(table.at(row), words[codes[row]], label)
        return found
    if manifest.target and manifest.target.kind == "count":
        return _counts(table, table.numbers[column], manifest.target.most)
    return np.zeros(0, np.int64)


def _counts(table: Table, values: Array, most: int) -> Array:
    counts = np.where(np.isnan(values), UNLABELLED, values)
    wrong = (counts != np.rint(counts)) | (counts > most) | (counts < UNLABELLED)
    if wrong.any():
        row = int(wrong.argmax())
        raise CommunisError(
            f"{table.at(row)}: {values[row]:g} is not a count from 0 to target.most = {most}"
        )
    return counts.astype(np.int64)
