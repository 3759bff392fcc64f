"""The methods over all cells of an experiment's grid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from communis.core.selection import SELECTS, Select
from communis.results.compare import (
    Row,
    cells,
    estimate,
    grouped,
    judge,
    paired,
    ranking,
    rows,
    scored,
)
from communis.results.estimate import WITHIN, Estimate
from communis.results.finished import Finished


class Selected(Protocol):
    """A method with its score by the round that counts, and the verdict on it: a row or a line."""

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
    selected: dict[Select, Estimate]  # the same by the round that counts
    difference: Estimate  # of the averages, to the best method's, paired by seed
    verdict: str


def lines(runs: Sequence[Finished], metric: str, select: Select) -> list[Line]:
    """One line per method that was evaluated, best average first."""
    runs = scored(runs)
    groups, places = grouped(runs), cells(runs)
    tables = {
        place: {row.method: row for row in rows(group, metric, select)}
        for place, group in places.items()
    }
    order, _ = ranking(runs, metric, select)
    best = groups[order[0]]
    found = []
    for name in order:
        group = groups[name]
        difference = paired(group, best, metric, select, places)
        found.append(
            Line(
                method=name,
                cells={place: table[name] for place, table in tables.items() if name in table},
                average=estimate(group, metric, select, places),
                selected={s: estimate(group, metric, s, places) for s in SELECTS},
                difference=difference,
                verdict=judge(group, best, difference, metric),
            )
        )
    return found


def mark(verdict: str) -> str:
    """* for the best mean, ~ for a method that cannot be told from it; nothing for one with too few
    seeds, of which that is not known either."""
    return "" if verdict not in ("", WITHIN) else "~" if verdict else "*"
