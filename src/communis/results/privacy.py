"""What may be promised of every method in every cell, and what it costs in scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from communis.core.selection import Select
from communis.results.account import epsilon_of
from communis.results.compare import cells, grouped
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.verdict import Verdict, verdict, worst

FREE = ("privacy.", "cell.")  # what may differ between a run and the one without privacy


@dataclass(frozen=True)
class Point:
    """A method in a cell."""

    runs: Sequence[Finished]  # its seeds
    verdict: Verdict

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def place(self) -> str:
        return self.runs[0].place

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [self.method, self.place]))


def points(runs: Sequence[Finished]) -> list[Point]:
    """In the order of the experiment's file, cell by cell."""
    return [
        Point(group, worst([verdict(run) for run in group]))
        for some in cells(runs).values()
        for group in grouped(some).values()
    ]


def as_json(run: Finished, spent: bool = False) -> dict[str, Any]:
    """For programs; spent: with what every client had spent after each of its rounds."""
    found = verdict(run)
    about = {"method": run.method, "cell": run.cell, "seed": run.seed, **asdict(found)}
    about["per_client"] = [
        {
            "client": one.client,
            "rounds": len(one.course),
            "epsilon": one.epsilon,
            "epsilon_by_round": {r: epsilon_of(mu, found.delta) for r, mu in one.course.items()},
        }
        for one in found.per_client
        if spent
    ]
    return about


def price(point: Point, runs: Sequence[Finished], metric: str, select: Select) -> Estimate | None:
    """What privacy changes of the score, seed by seed; None where there is nothing to compare."""
    if not asked(point):
        return None
    pairs = [(run, base) for run in point.runs if (base := unprotected(run, runs))]
    change = (run.final(metric, select) - base.final(metric, select) for run, base in pairs)
    return Estimate.of(change) if pairs else None


def unprotected(run: Finished, runs: Sequence[Finished]) -> Finished | None:
    """The run that differs in nothing but privacy, and has none."""
    fixed = {key: value for key, value in run.settings.items() if not key.startswith(FREE)}
    found = [
        other
        for other in runs
        if other.seed == run.seed
        and other.config.get("privacy", {}).get("mode", "none") == "none"
        and all(other.settings.get(key, value) == value for key, value in fixed.items())
    ]
    return found[0] if found else None


def asked(point: Point) -> bool:
    return point.verdict.mode not in ("none", "unknown")
