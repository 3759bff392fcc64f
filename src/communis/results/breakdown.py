"""The scores of one cell by client, by the sensors that were there, and by class."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from communis.core.pooled import of_client
from communis.core.selection import Select
from communis.results.compare import grouped, mixed
from communis.results.finished import Finished


def by_client(
    runs: Sequence[Finished], metric: str, select: Select, methods: Sequence[str]
) -> pd.DataFrame:
    """Rows are clients with their sensors and, where these differ, models. Both may be drawn by
    seed, so there can be several."""
    scores = {}
    for name, group in grouped(runs).items():
        found = pd.concat([run.by_client(metric, select) for run in group])
        scores[name] = found.groupby("client").agg(_mean)
    wide = pd.DataFrame({name: scores[name] for name in methods})
    evaluated = last(runs, metric)
    own = (
        evaluated[(evaluated["class"] == -1) & evaluated["own"]]
        .groupby("client")["subset"]
        .unique()
    )
    about = {client: ", ".join(sorted(found)) for client, found in own.items()}
    if mixed(runs):
        for client in {client for run in runs for client in run.models}:
            models = sorted({run.models[client] for run in runs if client in run.models})
            about[client] = f"{about.get(client, '')}; {', '.join(models)}"
    wide.index = pd.Index([f"{client}: {about.get(client, '')}" for client in wide.index])
    return wide


def last(runs: Sequence[Finished], metric: str) -> pd.DataFrame:
    """The test scores of the last evaluated round of every run, with the method's name."""
    parts = []
    for run in runs:
        t = run.last_scores
        here = t[(t["split"] == "test") & (t["metric"] == of_client(metric))]
        parts.append(here.assign(method=run.method))
    return pd.concat(parts)


def wide_table(found: pd.DataFrame, index: str, methods: Sequence[str]) -> pd.DataFrame:
    """Means by method."""
    wide = found.groupby([index, "method"])["value"].agg(_mean).unstack("method")
    return wide.reindex(columns=list(methods))


def _mean(values: pd.Series[float]) -> float:
    """NaN if any is: to leave out those that diverged would flatter a method."""
    return float(values.mean(skipna=False))


def by_subset(runs: Sequence[Finished], metric: str, methods: Sequence[str]) -> pd.DataFrame:
    found = last(runs, metric)
    found = found[found["class"] == -1]
    label = found["subset"] + found["own"].map({True: " (all it has)", False: " alone"})
    found = found.assign(sensors=label)
    return wide_table(found, "sensors", methods)
