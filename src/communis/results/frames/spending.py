"""Traffic, simulated time and energy, and what methods cost against the plainest one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from communis.core.selection import Select
from communis.results import timing as clock
from communis.results import traffic as until
from communis.results.compare import runs_by_cell
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.frames.columns import (
    ESTIMATE,
    METHOD,
    RUN,
    each_cell,
    frame,
    named,
    of_estimate,
    stack,
)
from communis.results.overhead import QUANTITIES, overheads


def overhead(finished: Sequence[Finished]) -> pd.DataFrame:
    """Costs against the base, in the cells and seeds that both have."""
    table = []
    against = overheads(finished)
    for row in against.rows if against else ():
        about = {"method": row.method, "base": against.base if against else ""}
        for name in QUANTITIES:
            value = getattr(row.cost, name)
            table.append({**about, "quantity": name, "value": value, "ratio": row.ratios[name]})
        table.append({**about, "quantity": "private_parameters", "value": row.private})
    return frame(table, ("method", "base", "quantity", "value", "ratio"))


def timing(
    finished: Sequence[Finished], metric: str, select: Select, targets: Sequence[float]
) -> pd.DataFrame:
    """What a round takes by the device clock."""
    table = []
    for place, inside in each_cell(finished).items():
        times = clock.timing(inside, metric, select, targets)
        for row in times.rows if times else ():
            quantities = {
                "seconds per round": row.seconds,
                "joules per round": row.joules,
                "speedup": row.speedup,
            }
            base = times.base if times else ""
            about = {"method": row.method, "cell": place, "base": base}
            table += _estimates(about, quantities)
    return frame(table, (*METHOD, "base", "quantity", *ESTIMATE))


def targets(
    finished: Sequence[Finished], metric: str, select: Select, asked: Sequence[float]
) -> pd.DataFrame:
    """What it took by the device clock to reach the target score. With fewer `reached` than `runs`
    means are lower bounds."""
    table = []
    for place, inside in each_cell(finished).items():
        times = clock.timing(inside, metric, select, asked)
        for row in times.rows if times else ():
            about = {
                "method": row.method,
                "cell": place,
                "target": times.target if times else 0.0,
                "reached": row.until.reached,
                "runs": row.until.runs,
            }
            table += _estimates(about, {name: getattr(row.until, name) for name in clock.SPENT})
    return frame(table, (*METHOD, "target", "quantity", *ESTIMATE, "reached", "runs"))


def traffic(
    finished: Sequence[Finished], metric: str, select: Select, asked: Sequence[float]
) -> pd.DataFrame:
    """What was sent until a target score was reached. Without a mean where some seed never did."""
    table = []
    for place, inside in each_cell(finished).items():
        for target in until.traffic(inside, metric, select, asked):
            for row in target.rows:
                about = {
                    "method": row.method,
                    "cell": place,
                    "target": target.target,
                    "reached": row.reached,
                    "runs": row.runs,
                }
                quantities = {
                    "rounds": row.rounds,
                    "bytes up": row.uplink,
                    "bytes up per client": row.per_client,
                    "bytes up and down": row.total,
                }
                table += _estimates(about, quantities)
    return frame(table, (*METHOD, "target", "quantity", *ESTIMATE, "reached", "runs"))


def devices(finished: Sequence[Finished]) -> pd.DataFrame:
    """Mean simulated seconds of a round by what clients are; `clients`: how many a run has."""
    columns = (*METHOD, "kind", "clients", "seconds_compute", "seconds_communication")
    parts = []
    for place, inside in runs_by_cell(finished).items():
        for method, table in clock.devices(inside).items():
            renamed = table.reset_index().rename(columns=_seconds(clock.PARTS))
            parts.append(renamed.assign(method=method, cell=place))
    return stack(parts, (*columns, "seconds_idle"))


def busy(finished: Sequence[Finished]) -> pd.DataFrame:
    """How much of the time that devices are busy they compute, by cell."""
    table = []
    for place, inside in runs_by_cell(finished).items():
        by_method = clock.devices(inside)
        if by_method:
            share = clock.computing_share(by_method.values())
            table.append({"cell": place, "share_computing": share})
    return frame(table, ("cell", "share_computing"))


def client_rounds(finished: Sequence[Finished]) -> pd.DataFrame:
    """The simulated seconds and joules of every client in every round."""
    columns = (*RUN, "round", "client", "kind", "seconds_compute", "seconds_communication")
    parts = []
    for run in finished:
        table = named(clock.client_rounds([run]), run)
        parts.append(table.rename(columns=_seconds(clock.PARTS)))
    return stack(parts, (*columns, "seconds_idle", "joules"))


def _seconds(names: Sequence[str]) -> dict[str, str]:
    return {name: f"seconds_{name}" for name in names}


def _estimates(about: dict[str, Any], quantities: dict[str, Estimate]) -> list[dict[str, Any]]:
    return [
        {**about, "quantity": name, **of_estimate(estimate)}
        for name, estimate in quantities.items()
    ]
