"""The common model of a finished run, for models to begin with (`fleet.start`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from communis.core.disk import DamagedError
from communis.core.errors import CommunisError, plain
from communis.core.settings import SchemaError
from communis.core.state import State
from communis.fleet.start import Start
from communis.run import reading
from communis.run.folder import RunFolder
from communis.run.learned import INDEX, WAY_OUT, LearnedFolder


def start_of(run: Path, data: Mapping[str, Any]) -> Start:
    """Returns the common model of a run after its last round. data: the table of the dataset that
    models will be trained on."""
    folder = RunFolder(run)
    try:
        learned = LearnedFolder(run, folder.owner)
        there = learned.exists
    except OSError as error:
        raise SchemaError(f"fleet.start = {run}: cannot be read: {plain(error)}") from None
    if not there:
        raise SchemaError(
            f"fleet.start = {run}: no models are kept there: expected the folder of a finished run "
            "with run.keep = true, such as runs/demo/fedavg/seed0"
        )
    index = learned.index()
    if index.last not in index.rounds:
        raise DamagedError(
            f"{run / INDEX}: names no models after round {index.last}, the last; {WAY_OUT}"
        )
    last = index.rounds[index.last]
    if not last.common:
        raise SchemaError(
            f"fleet.start = {run}: it has no common model ({last.lacking}); start from a run of "
            "fedavg or another method that has one"
        )
    models = {name: State(learned.model(file)[0]) for name, file in last.common.items()}
    digests = {name: Path(file).stem for name, file in last.common.items()}
    labels = folder.fleet().get("labels")
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise DamagedError(f"{run / 'fleet.json'}: does not name the classes; {WAY_OUT}")
    return Start(str(run), models, digests, labels, _same_data(run, data))


def _same_data(run: Path, data: Mapping[str, Any]) -> bool:
    """Returns whether a run, or one of those that it goes on from, learned from the dataset of this
    table, however it was cut, or may have done so."""
    table, _, _ = reading.read(str(run / "config.toml"))
    seen = {run.resolve()}
    while not _alike(table.get("data"), data):
        fleet = table.get("fleet")
        start = fleet.get("start") if isinstance(fleet, Mapping) else None
        if not start:
            return False
        try:
            before = Path(str(start)).resolve()
            table, _, _ = reading.read(str(before / "config.toml"))
        except (CommunisError, OSError, ValueError):
            return True  # what that run learned from is not known
        if before in seen:
            return False
        seen.add(before)
    return True


def _alike(theirs: Any, data: Mapping[str, Any]) -> bool:
    if not isinstance(theirs, Mapping) or "name" not in theirs:
        return True
    if theirs["name"] != data["name"]:
        return False
    if data["name"] != "own":
        return True
    folders = [Path(str(source.get("folder", ""))) for source in (theirs, data)]
    # A path that is relative to the folder where that run was begun may lead nowhere from here.
    if not folders[0].is_absolute() and not folders[0].exists():
        return True
    return folders[0].resolve() == folders[1].resolve()
