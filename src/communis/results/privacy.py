"""What may be promised of every method in every cell, and what it costs in scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd

from communis.core.selection import Select
from communis.exchange.privacy import gaussian
from communis.results.compare import runs_by_cell, runs_by_method
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.selection import Scores
from communis.results.verdict import Verdict, epsilon_by_round, privacy_verdict, worst

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
    """Every method in every cell, in the order of the experiment's file, cell by cell."""
    judged = []
    for inside in runs_by_cell(runs).values():
        for group in runs_by_method(inside).values():
            judged.append(Point(group, worst([privacy_verdict(run) for run in group])))
    return judged


def as_json(run: Finished, spent: bool = False) -> dict[str, Any]:
    """The verdict for programs; spent: with what every client had spent after each round."""
    judgement = privacy_verdict(run)
    about = {"method": run.method, "cell": run.cell, "seed": run.seed, **asdict(judgement)}
    about["per_client"] = []
    for client in judgement.per_client if spent else ():
        by_round = {
            round: gaussian.epsilon_of(mu, judgement.delta)
            for round, mu in client.mu_by_round.items()
        }
        about["per_client"].append(
            {
                "client": client.client,
                "rounds": len(client.mu_by_round),
                "epsilon": client.epsilon,
                "epsilon_by_round": by_round,
            }
        )
    return about


def prices(
    judged: Sequence[Point], runs: Sequence[Finished], metric: str, select: Select
) -> dict[str, Estimate]:
    """`price` by the name of the point, where there is something to compare with."""
    every = {point.name: price(point, runs, metric, select) for point in judged}
    return {name: paid for name, paid in every.items() if paid}


def price(point: Point, runs: Sequence[Finished], metric: str, select: Select) -> Estimate | None:
    """What privacy changes of the score, seed by seed; None where there is nothing to compare."""
    if not asked(point):
        return None
    changes = []
    for run in point.runs:
        base = unprotected(run, runs)
        if base is not None:
            changes.append(run.final(metric, select) - base.final(metric, select))
    return Estimate.of(changes) if changes else None


def epsilon_curves(judged: Sequence[Point]) -> list[tuple[list[Point], list[Scores]]]:
    """The largest epsilon of a client by round, one series per seed, and the points that spend so:
    methods of a cell often spend the same. Without those to which nothing is promised."""
    alike: dict[Any, list[Point]] = {}
    for point in judged:
        by_seed = tuple(tuple(epsilon_by_round(run).items()) for run in point.runs)
        if all(by_seed):
            alike.setdefault(by_seed, []).append(point)
    return [
        (points, [pd.Series(dict(spent), dtype=float) for spent in by_seed])
        for by_seed, points in alike.items()
    ]


def unprotected(run: Finished, runs: Sequence[Finished]) -> Finished | None:
    """The run that differs in nothing but privacy, and has none."""
    fixed = {key: value for key, value in run.settings.items() if not key.startswith(FREE)}
    for other in runs:
        unprotected = other.config.get("privacy", {}).get("mode", "none") == "none"
        alike = all(other.settings.get(key, value) == value for key, value in fixed.items())
        if other.seed == run.seed and unprotected and alike:
            return other
    return None


def asked(point: Point) -> bool:
    return point.verdict.mode not in ("none", "unknown")
