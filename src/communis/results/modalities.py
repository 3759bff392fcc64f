"""The scores of a model with each modality alone, and with the rare ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from communis.core.selection import Select
from communis.results.compare import averaged, known, runs_by_cell, runs_by_method
from communis.results.estimate import Estimate
from communis.results.finished import Finished

ALL, ONLY = "all", "only_"  # views of the common model on everybody's windows


def of_common_model(view: str) -> bool:
    """Whether a view is of the common model with all of the fleet's sensors, or with one."""
    return view == ALL or view.startswith(ONLY)


@dataclass(frozen=True)
class Alone:
    """The scores of modalities by method and view: own, all, only_<modality>, rare."""

    common: bool  # scores of the common model on everybody's windows; else of the sensors' owners
    rare: Sequence[str]  # the modalities that the fewest clients own
    rows: Mapping[str, Mapping[str, Estimate]]


def alone(runs: Sequence[Finished], metric: str, select: Select) -> Alone | None:
    """The scores by views of the common model on everybody's windows. Where no method has them, by
    the sensors of clients after the last round, if some sensors are rarer than others. None where
    there is neither. Means over cells seed by seed, then over seeds."""
    metric = metric.partition("@")[0]
    common = True
    scores = {run.path: by_view(run, metric, select) for run in runs}
    if not any(scores.values()) and any(rare(run) for run in runs):
        common = False
        scores = {run.path: by_owner(run, metric) for run in runs}
    if not any(scores.values()):
        return None
    for run in runs:
        rarest = [scores[run.path].get(f"{ONLY}{modality}", math.nan) for modality in rare(run)]
        if rarest and scores[run.path]:
            scores[run.path]["rare"] = fmean(rarest)
        own = run.final(metric, select if common else "last")
        scores[run.path] = {"own": own, **scores[run.path]}
    places = runs_by_cell(runs)
    rows: dict[str, dict[str, Estimate]] = {}
    for method, group in runs_by_method(runs).items():
        views = [
            view for view in scores[group[0].path] if all(view in scores[run.path] for run in group)
        ]
        rows[method] = {}
        for view in views:
            by_run = {(run.seed, run.place): scores[run.path][view] for run in group}
            rows[method][view] = Estimate.of(averaged(by_run, places).values())
    return Alone(common, sorted({modality for run in runs for modality in rare(run)}), rows)


def by_view(run: Finished, metric: str, select: Select) -> dict[str, float]:
    """The test scores of the common model, by view."""
    scores = {}
    for name in known([run]):
        of_metric, _, view = name.partition("@")
        if of_metric == metric and of_common_model(view):
            scores[view] = run.final(name, select, by=metric)
    return scores


def by_owner(run: Finished, metric: str) -> dict[str, float]:
    """The test scores after the last round with a single sensor of clients that own several, by
    the name of the view."""
    table = run.last_scores
    of_metric = (table["split"] == "test") & (table["metric"] == metric) & (table["class"] == -1)
    single = table[of_metric & ~table["own"]]
    means = single.groupby("subset")["value"].agg(lambda values: values.mean(skipna=False))
    return {f"{ONLY}{subset}": float(value) for subset, value in means.items()}


def rare(run: Finished) -> list[str]:
    """The modalities that the fewest clients own; none where all are owned by as many."""
    owners = Counter(sensor for client in run.clients for sensor in client.get("sensors", ()))
    fewest = min(owners.values(), default=0)
    rarest = sorted(sensor for sensor, count in owners.items() if count == fewest)
    return rarest if len(rarest) < len(owners) else []
