"""The common model of a finished run, for models to begin with (`fleet.start`)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from communis.core.errors import plain
from communis.core.settings import SchemaError
from communis.core.state import State
from communis.fleet.start import Start
from communis.run import reading
from communis.run.folder import RunFolder
from communis.run.learned import LearnedFolder


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
    last = index.rounds[index.last]
    if not last.common:
        raise SchemaError(
            f"fleet.start = {run}: it has no common model ({last.lacking}); start from a run of "
            "fedavg or another method that has one"
        )
    models = {name: State(learned.model(file)[0]) for name, file in last.common.items()}
    digests = {name: Path(file).stem for name, file in last.common.items()}
    labels = folder.fleet()["labels"]
    return Start(str(run), models, digests, labels, _same_data(run, data))


def _same_data(run: Path, data: Mapping[str, Any]) -> bool:
    """Returns whether a run learned from the dataset of this table, however it was cut, or may have
    done so."""
    table, _, _ = reading.read(str(run / "config.toml"))
    theirs = table.get("data", data)
    if theirs["name"] != data["name"]:
        return False
    if data["name"] != "own":
        return True
    folders = {Path(str(source.get("folder", ""))).resolve() for source in (theirs, data)}
    return len(folders) == 1
