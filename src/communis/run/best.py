"""The best round of a run, as validation windows judge it. What was learned up to then is kept
beside what was learned in all rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from communis.core.arrays import Array
from communis.core.metrics import better
from communis.exchange.messages import RoundRecord

USUAL = "accuracy"  # the metric of a task that has it


@dataclass(frozen=True)
class RunState:
    """The state of clients and servers after a round."""

    round: int
    since: Array  # (clients,) the round of each client's private state; -1: none
    servers: Mapping[int, Any]


def best_round(history: Sequence[RoundRecord], metric: str = "") -> int:
    """Returns the round with the best mean over clients on their validation windows, the earliest
    of equals; 0 if no round has one. metric: the score to judge by; empty, or one that validation
    does not have: accuracy if the task has it, else its first score."""
    values: dict[int, float] = {}
    for record in history:
        scores = _of_validation(record)
        name = _chosen(scores, metric)
        if name and not math.isnan(scores[name]):
            values[record.round] = better(name) * scores[name]
    return max(values, key=lambda round: (values[round], -round), default=0)


def _of_validation(record: RoundRecord) -> dict[str, float]:
    prefix = "val."
    return {
        key.removeprefix(prefix): value
        for key, value in record.scores.items()
        if key.startswith(prefix) and "@" not in key
    }


def _chosen(scores: Mapping[str, float], metric: str) -> str:
    for name in (metric, USUAL):
        if name in scores:
            return name
    return next(iter(scores), "")
