"""Traffic until a target score is first reached, by the whole fleet and by client, as in Table I of
the CoMFed paper."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from communis.core.selection import Select
from communis.results.compare import averaged, ranking, runs_by_cell, runs_by_method, scored
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.timing import first_round, named

SPENT = ("rounds", "uplink", "per_client", "total")


@dataclass(frozen=True)
class Sent:
    """What a method sent until its mean test score first reached the target. A seed that never
    reached it has no value, and then there is no mean."""

    method: str
    rounds: Estimate
    uplink: Estimate  # bytes of payload, all clients together
    per_client: Estimate  # the same, divided by the clients that had sent anything by then
    total: Estimate  # bytes in both directions, framing included
    reached: int
    runs: int


@dataclass(frozen=True)
class Traffic:
    """All methods until one target, in the order of the comparison."""

    target: float
    rows: Sequence[Sent]


def traffic(
    runs: Sequence[Finished], metric: str, select: Select = "last", targets: Sequence[float] = ()
) -> list[Traffic]:
    """One result for every target (see `timing.named`), from the easiest to the hardest. Means over
    cells seed by seed, then over seeds."""
    runs = scored(runs)
    groups, places = runs_by_method(runs), runs_by_cell(runs)
    order = ranking(runs, metric, select)[0]
    return [
        Traffic(target, [_sent(groups[name], metric, target, places) for name in order])
        for target in named(runs, metric, targets)
    ]


def _sent(
    group: Sequence[Finished], metric: str, target: float, everywhere: Collection[str]
) -> Sent:
    """What the runs of one method sent."""
    spent = {}
    reached = 0
    for run in group:
        last = first_round(run, metric, target)
        if last is not None:
            reached += 1
        spent[run.seed, run.place] = _until(run, last)
    means = {}
    for name in SPENT:
        by_run = {key: values[name] for key, values in spent.items()}
        means[name] = Estimate.of(averaged(by_run, everywhere).values())
    return Sent(group[0].method, **means, reached=reached, runs=len(group))


def _until(run: Finished, last: int | None) -> dict[str, float]:
    """The bytes that a run sent until the end of a round; NaN where there is no such round."""
    if last is None:
        return dict.fromkeys(SPENT, math.nan)
    records = [record for record in run.records if record.round <= last]
    uplink = sum(record.bytes_up for record in records)
    other = sum(record.bytes_down + record.bytes_framing for record in records)
    senders = sum(first <= last for first in run.senders.values())
    return {
        "rounds": last,
        "uplink": uplink,
        "per_client": uplink / max(senders, 1),  # without senders nothing is sent
        "total": uplink + other,
    }
