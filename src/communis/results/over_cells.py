"""The methods over all cells of an experiment's grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from communis.core.selection import SELECTS, Select
from communis.results.compare import (
    LEADING,
    Row,
    estimate,
    judge,
    metrics,
    paired,
    ranking,
    rows,
    runs_by_cell,
    runs_by_method,
    scored,
)
from communis.results.estimate import UNCLEAR, Estimate
from communis.results.finished import Finished

CALIBRATION = ("nll", "brier", "ece")


class Selected(Protocol):
    """A method with its score by each way to choose the round, and the verdict on it: a `Row` of
    one cell, or a `Line` over all cells."""

    @property
    def method(self) -> str: ...
    @property
    def selected(self) -> Mapping[Select, Estimate]: ...
    @property
    def difference(self) -> Estimate: ...
    @property
    def verdict(self) -> str: ...


@dataclass(frozen=True)
class Line:
    """One method over all cells."""

    method: str
    cells: dict[str, Row]  # those it was run in
    average: Estimate  # over cells seed by seed, then over seeds; of the seeds that all cells have
    selected: dict[Select, Estimate]  # the average by each way to choose the round that counts
    difference: Estimate  # the average minus that of the best method, paired by seed
    verdict: str


def lines(runs: Sequence[Finished], metric: str, select: Select) -> list[Line]:
    """One line per method that was evaluated, the best average first."""
    runs = scored(runs)
    groups, places = runs_by_method(runs), runs_by_cell(runs)
    tables = {
        place: {row.method: row for row in rows(group, metric, select)}
        for place, group in places.items()
    }
    order, _ = ranking(runs, metric, select)
    best = groups[order[0]]
    compared = []
    for name in order:
        group = groups[name]
        difference = paired(group, best, metric, select, places)
        compared.append(
            Line(
                method=name,
                cells={place: table[name] for place, table in tables.items() if name in table},
                average=estimate(group, metric, select, places),
                selected={s: estimate(group, metric, s, places) for s in SELECTS},
                difference=difference,
                verdict=judge(group, best, difference, metric),
            )
        )
    return compared


def other_metrics(runs: Sequence[Finished], metric: str) -> list[str]:
    """The scores that a grid shows beside the one it is judged by."""
    there = metrics(runs)
    return [name for name in (*LEADING, *CALIBRATION) if name in there and name != metric]


def averages(
    runs: Sequence[Finished], shown: Sequence[str], metric: str, select: Select
) -> dict[str, dict[str, Estimate]]:
    """The scores `shown` of every method, averaged over cells seed by seed, then over seeds; in the
    round that `metric` chooses."""
    places = runs_by_cell(runs)
    return {
        method: {name: estimate(group, name, select, places, by=metric) for name in shown}
        for method, group in runs_by_method(runs).items()
    }


def mark(verdict: str) -> str:
    """* for the best mean, ~ for a method that cannot be told from it. Nothing for other methods,
    and for those with too few seeds to tell."""
    if verdict == "":
        return "*"
    return "~" if verdict == UNCLEAR else ""
