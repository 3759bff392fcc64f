"""The main process is killed at some moment of a run, with or without workers, then resumed."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.faults.assault.case import Case
from tests.faults.assault.experiment import (
    ROUNDS,
    Forked,
    again,
    await_round,
    begin,
    different,
    numbers,
    refusal,
)
from tests.faults.assault.home import expected
from tests.faults.assault.outcome import SURVIVED, Outcome

LIMIT = 120.0
ROUND = 0.06  # seconds, about: a kill falls somewhere within a round
START = 0.5  # seconds until the first round, about
ORPHANS = 15.0  # seconds in which the workers of a process that was killed must be gone


def attempt(case: Case) -> Outcome:
    rng = case.rng
    workers = int(rng.integers(1, 3))
    folder = case.scratch / "run"
    process = interrupted(case, folder, workers, rng, Forked.kill)
    process.wait()
    shutil.copytree(folder, case.scratch / "interrupted") if folder.exists() else None
    outcome = resumed(case, folder)
    if not outcome.harmful and not gone(process):
        outcome = Outcome("hang", "the workers of a process that was killed are still there")
    process.end_all()
    return outcome


def interrupted(
    case: Case,
    folder: Path,
    workers: int,
    rng: np.random.Generator,
    stop: Callable[[Forked], None],
) -> Forked:
    """A run that was stopped at some moment; if it was over before, another one."""
    round = int(rng.integers(ROUNDS))
    delay = float(rng.uniform(0, ROUND if round else START))
    process = begin(folder, case.experiment, case.scratch, workers)
    await_round(process, folder, round)
    time.sleep(delay)
    if process.running():
        stop(process)
        return process
    process.wait()
    shutil.rmtree(folder)
    return interrupted(case, folder, workers, rng, stop)


def resumed(case: Case, folder: Path) -> Outcome:
    """The run comes to the numbers of one that nobody has interrupted."""
    said = again(folder, case.experiment, case.scratch)
    found = refusal(said, str(folder))
    if found is not None:
        return found if found.harmful else Outcome("traceback", f"not resumed: {said.text}")
    other = different(numbers(folder), expected(case.home, case.name))
    if other:
        return Outcome("silent difference", f"{case.name}: {', '.join(other[:5])}")
    return SURVIVED


def gone(process: Forked) -> bool:
    """Whether nothing is left of a process group, soon."""
    deadline = time.monotonic() + ORPHANS
    while time.monotonic() < deadline:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False
