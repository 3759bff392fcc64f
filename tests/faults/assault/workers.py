"""A worker process is killed in the middle of a round. The run goes on; a client that was being
trained is refused by name for that round, and what comes before is as it was."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.faults.assault.case import Case
from tests.faults.assault.experiment import (
    ROUNDS,
    again,
    await_round,
    begin,
    different,
    numbers,
    refusal,
)
from tests.faults.assault.home import expected
from tests.faults.assault.kills import ROUND, resumed
from tests.faults.assault.outcome import REFUSED, SURVIVED, Outcome

LIMIT = 120.0
DIED = "the worker process died"


def attempt(case: Case) -> Outcome:
    rng = case.rng
    folder = case.scratch / "run"
    round = int(rng.integers(1, ROUNDS))
    delay = float(rng.uniform(0, ROUND))
    process = begin(folder, case.experiment, case.scratch, workers=2)
    await_round(process, folder, round)
    time.sleep(delay)
    found = _children(process.pid)
    if found:
        _kill(found[int(rng.integers(len(found)))])
    said = process.wait()
    process.end_all()
    ended = refusal(said, str(folder), DIED)
    if ended is not None and ended.harmful:
        return ended
    if ended is not None:  # one clear line: then resuming leads to the numbers of a whole run
        after = resumed(case, folder)
        return after if after.harmful else REFUSED
    outcome = _compared(numbers(folder), expected(case.home, case.name))
    before = numbers(folder)
    if not outcome.harmful and again(folder, case.experiment, case.scratch).code != 0:
        return Outcome("traceback", "a finished run cannot be resumed")
    if different(numbers(folder), before):
        return Outcome("silent difference", "resuming a finished run changes it")
    return outcome


def _compared(found: dict[str, Any], whole: dict[str, Any]) -> Outcome:
    """Up to the first round that says that a worker died, everything is as it was."""
    ours, theirs = found.get("records.jsonl", []), whole["records.jsonl"]
    if [record["round"] for record in ours] != [record["round"] for record in theirs]:
        return Outcome("silent difference", f"{len(ours)} rounds of {len(theirs)}")
    for mine, other in zip(ours, theirs, strict=True):
        if DIED in json.dumps(mine["refused"]):
            return REFUSED
        if mine != other:
            return Outcome("silent difference", f"round {mine['round']}: {mine['refused']}")
    other_files = different(found, whole)
    if other_files:
        return Outcome("silent difference", ", ".join(other_files[:5]))
    return SURVIVED


def _children(pid: int) -> list[int]:
    """The workers of a process; Linux says."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
