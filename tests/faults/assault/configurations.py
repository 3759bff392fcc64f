"""Configurations that nobody in their senses would write: refused by name, or run."""

from __future__ import annotations

from tests.faults import hostile_configs
from tests.faults.assault.case import Case
from tests.faults.assault.outcome import REFUSED, SURVIVED, Outcome

LIMIT = 60.0


def attempt(case: Case) -> Outcome:
    text = hostile_configs.hostile(case.rng)
    said = hostile_configs.attempt(text, case.scratch)
    if said == "refused":
        return REFUSED
    return SURVIVED if said == "ran" else Outcome("traceback", said)
