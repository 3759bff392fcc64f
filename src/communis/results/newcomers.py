"""The scores of newcomers: clients that took no part in training, with the common model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from communis.core.metrics import better
from communis.core.names import MOST_FREQUENT
from communis.core.pooled import is_pooled, of_client
from communis.core.selection import Select
from communis.results.compare import averaged, in_order, runs_by_cell, runs_by_method
from communis.results.estimate import Estimate, ranked, significance
from communis.results.finished import Finished

if TYPE_CHECKING:
    import pandas as pd

Values = dict[tuple[int, str], float]  # by seed and cell


@dataclass(frozen=True)
class Served:
    """What a method gives to newcomers."""

    method: str
    scores: Mapping[str, Estimate]  # by metric; empty without a common model
    weakest: Estimate  # the primary metric of the weakest newcomer
    difference: Estimate  # primary metric minus that of the best method, paired by seed
    verdict: str  # empty for the best one, and without a common model
    why: str  # why newcomers have no score; empty if they have

    @property
    def common(self) -> bool:
        """Whether the method has a common model."""
        return not self.why


@dataclass(frozen=True)
class Newcomers:
    """The methods side by side on newcomers."""

    count: Sequence[int]  # of newcomers, by run
    metrics: Sequence[str]  # the primary one first
    rows: Sequence[Served]  # the best first, those without a common model last
    control: Mapping[str, Estimate]  # always the members' most frequent class; empty: no classes


def newcomers(runs: Sequence[Finished], metric: str, select: Select) -> Newcomers | None:
    """The methods on newcomers, in the round that counts for members: nothing of newcomers chooses
    it. Means over newcomers, over cells seed by seed, then over seeds. None where there are no
    newcomers."""
    runs = [run for run in runs if run.newcomers]
    if not runs:
        return None
    shown = dict.fromkeys([of_client(metric), *(n for n in in_order(runs, metric) if _plain(n))])
    groups = runs_by_method(runs)
    places = list(runs_by_cell(runs))
    by_metric = {
        name: {method: _means(group, name, select, metric) for method, group in groups.items()}
        for name in shown
    }
    primary = next(iter(shown))
    by_seed = {
        method: averaged(values, places) for method, values in by_metric[primary].items() if values
    }
    order = ranked({name: Estimate.of(own.values()) for name, own in by_seed.items()}, primary)
    rows = []
    for method in [*order, *(name for name in groups if name not in by_seed)]:
        common = method in by_seed
        difference = _difference(by_seed, method, order)
        scores = {n: Estimate.of(averaged(by_metric[n][method], places).values()) for n in shown}
        rows.append(
            Served(
                method=method,
                scores=scores if common else {},
                weakest=_weakest(groups[method], primary, select, metric, places),
                difference=difference,
                verdict=significance(difference, primary) if common and method != order[0] else "",
                why="" if common else _why(groups[method]),
            )
        )
    control = _control(runs, list(shown), select, metric, places)
    return Newcomers([len(run.newcomers) for run in runs], list(shown), rows, control)


def by_client(run: Finished, metric: str, select: Select) -> pd.Series[float]:
    """The score of every newcomer of a run in the round that counts."""
    return run.of_newcomers(of_client(metric), select, metric)


def _plain(metric: str) -> bool:
    """Whether a score is a mean over clients of the method's own prediction."""
    return "@" not in metric and not is_pooled(metric)


def _means(runs: Sequence[Finished], name: str, select: Select, by: str) -> Values:
    """The means over newcomers of the runs in which some were scored."""
    found = {}
    for run in runs:
        scores = run.of_newcomers(name, select, by)
        if len(scores):
            found[run.seed, run.place] = float(scores.mean(skipna=False))
    return found


def _weakest(
    runs: Sequence[Finished], name: str, select: Select, by: str, places: Sequence[str]
) -> Estimate:
    found = {}
    for run in runs:
        scores = run.of_newcomers(name, select, by)
        if len(scores):
            worst = scores.min(skipna=False) if better(name) > 0 else scores.max(skipna=False)
            found[run.seed, run.place] = float(worst)
    return Estimate.of(averaged(found, places).values())


def _difference(
    by_seed: Mapping[str, Mapping[int, float]], method: str, order: Sequence[str]
) -> Estimate:
    """The difference of a method to the best one, over the seeds that both have."""
    if method not in by_seed:
        return Estimate(math.nan, math.nan, 0)
    own = by_seed[method]
    best = by_seed[order[0]]
    return Estimate.of(own[seed] - best[seed] for seed in own if seed in best)


def _why(runs: Sequence[Finished]) -> str:
    """The reasons why the newcomers of these runs have no score."""
    reasons = dict.fromkeys(why for run in runs for why in run.newcomers.values() if why)
    return "; ".join(reasons) or "none was scored yet"


def _control(
    runs: Sequence[Finished],
    shown: Sequence[str],
    select: Select,
    by: str,
    places: Sequence[str],
) -> dict[str, Estimate]:
    """The scores of always saying the most frequent class. It is the same for all methods of a seed
    and cell that were scored."""
    found = {}
    for name in shown:
        values = _means(runs, f"{name}@{MOST_FREQUENT}", select, by)
        if values:
            found[name] = Estimate.of(averaged(values, places).values())
    return found
