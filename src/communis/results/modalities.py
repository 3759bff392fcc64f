"""What a model makes of each modality alone, and of the rare ones."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from communis.core.selection import Select
from communis.results.compare import averaged, cells, grouped, known
from communis.results.estimate import Estimate
from communis.results.finished import Finished

ALL, ONLY = "all", "only_"  # views of the common model on everybody's windows


def whole(view: str) -> bool:
    """Whether a view is of the common model with all of the fleet's sensors, or with one."""
    return view == ALL or view.startswith(ONLY)


@dataclass(frozen=True)
class Alone:
    """The scores of modalities by method: own, all, only_<modality>, rare."""

    common: bool  # of the common model on everybody's windows; if not, of the sensors' owners
    rare: Sequence[str]  # what the fewest clients own
    rows: Mapping[str, Mapping[str, Estimate]]


def alone(runs: Sequence[Finished], metric: str, select: Select) -> Alone | None:
    """By views of the common model on everybody's windows; where no method has them by clients' own
    sensors after the last round, if some are rarer than others. None where there is neither. Means
    over cells seed by seed, then over seeds."""
    metric, common = metric.partition("@")[0], True
    scores = {run.path: by_view(run, metric, select) for run in runs}
    if not any(scores.values()) and any(map(rare, runs)):
        scores, common = {run.path: by_owner(run, metric) for run in runs}, False
    if not any(scores.values()):
        return None
    for run in runs:
        rarest = [scores[run.path].get(f"{ONLY}{m}", math.nan) for m in rare(run)]
        if rarest and scores[run.path]:
            scores[run.path]["rare"] = fmean(rarest)
        own = run.final(metric, select if common else "last")
        scores[run.path] = {"own": own, **scores[run.path]}
    places, rows = cells(runs), {}
    for method, group in grouped(runs).items():
        names = [
            name for name in scores[group[0].path] if all(name in scores[r.path] for r in group)
        ]
        rows[method] = {
            name: Estimate.of(
                averaged({(r.seed, r.place): scores[r.path][name] for r in group}, places).values()
            )
            for name in names
        }
    return Alone(common, sorted({m for run in runs for m in rare(run)}), rows)


def by_view(run: Finished, metric: str, select: Select) -> dict[str, float]:
    """The test scores of the common model, by view."""
    names = [name for name in known([run]) if name.startswith(f"{metric}@")]
    views = {name.partition("@")[2]: name for name in names}
    return {v: run.final(name, select, by=metric) for v, name in views.items() if whole(v)}


def by_owner(run: Finished, metric: str) -> dict[str, float]:
    """The test scores of sensors that clients own among others, each alone, after the last round;
    named as the views are."""
    t = run.last_scores
    t = t[(t["split"] == "test") & (t["metric"] == metric) & ~t["own"] & (t["class"] == -1)]
    means = t.groupby("subset")["value"].agg(lambda values: values.mean(skipna=False))
    return {f"{ONLY}{subset}": float(value) for subset, value in means.items()}


def rare(run: Finished) -> list[str]:
    """The modalities that the fewest clients own; none where all are owned by as many."""
    owners = Counter(m for client in run.clients for m in client.get("sensors", ()))
    fewest = min(owners.values(), default=0)
    found = sorted(m for m, n in owners.items() if n == fewest)
    return found if len(found) < len(owners) else []
