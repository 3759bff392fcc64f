"""What all cases share: every experiment run to its end, and stopped half way."""

from __future__ import annotations

import pickle
import shutil
from functools import cache
from pathlib import Path
from typing import Any

from communis import load
from communis.run.jobs import Job
from tests.faults.assault.experiment import (
    EXPERIMENTS,
    ROUNDS,
    Experiment,
    Forked,
    Look,
    look,
    numbers,
)

HALF = ROUNDS // 2


def prepare(home: Path) -> None:
    """Everything below is there."""
    for name in EXPERIMENTS:
        _made(home, "whole", name, ROUNDS)
        _made(home, "half", name, HALF)


def _made(home: Path, state: str, name: str, rounds: int) -> None:
    scratch = home / "scratch"
    scratch.mkdir()
    folder = place(home, state, name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    said = Forked(lambda: _go(folder, EXPERIMENTS[name], rounds, scratch), scratch).wait()
    if said.code != 0:
        raise RuntimeError(f"{name}: the run that others are compared with failed: {said.text}")
    seen = pickle.dumps(look(folder, scratch))
    folder.with_name(f"{folder.name}.seen").write_bytes(seen)
    shutil.rmtree(scratch)


def _go(folder: Path, experiment: Experiment, rounds: int, scratch: Path) -> None:
    """A run that is stopped after so many rounds, as by Ctrl-C, but always after the same."""
    settings = scratch / "experiment.toml"
    settings.write_text(experiment.settings())
    config = load(str(settings))
    with Job(config, folder).open(config.make_fleet(), 1) as run:
        for record in run:
            if record.round == rounds:
                break


def place(home: Path, state: str, name: str) -> Path:
    """The folder of an experiment. state: whole or half."""
    return home / state / name.replace(" ", "_")


@cache
def expected(home: Path, name: str) -> dict[str, Any]:
    """The content of the folder of a run to the end."""
    return numbers(place(home, "whole", name))


@cache
def seen(home: Path, state: str, name: str) -> Look:
    """What is reported of it. Our own file, so that it may be a pickle."""
    folder = place(home, state, name)
    found: Look = pickle.loads(folder.with_name(f"{folder.name}.seen").read_bytes())
    return found
