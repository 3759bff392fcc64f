"""What all cases share: every experiment run to its end, and stopped half way."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
from functools import cache
from pathlib import Path
from typing import Any

from tests.faults.assault.experiment import (
    EXPERIMENTS,
    ROUNDS,
    Look,
    await_round,
    begin,
    look,
    numbers,
)

HALF = ROUNDS // 2


def prepare(home: Path) -> None:
    """Everything below is there."""
    for name in EXPERIMENTS:
        _made(home, "whole", name, stop_after=0)
        _made(home, "half", name, stop_after=HALF)


def _made(home: Path, state: str, name: str, stop_after: int) -> None:
    scratch = home / "scratch"
    scratch.mkdir(exist_ok=True)
    folder = place(home, state, name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    process = begin(folder, EXPERIMENTS[name], scratch)
    if stop_after and await_round(process, folder, stop_after):
        os.kill(process.pid, signal.SIGTERM)  # it finishes the round
    said = process.wait()
    if said.code not in (0, 130):
        raise RuntimeError(f"{name}: the run that others are compared with failed: {said.text}")
    (folder / "report.html").unlink(missing_ok=True)
    seen = pickle.dumps(look(folder, scratch))
    folder.with_name(f"{folder.name}.seen").write_bytes(seen)
    shutil.rmtree(scratch)


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
