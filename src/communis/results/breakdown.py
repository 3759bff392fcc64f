"""The scores of one cell by client, by the sensors that were there, and by class."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from communis.core.pooled import of_client
from communis.core.selection import Select
from communis.results.compare import mixed
from communis.results.finished import Finished

RUN = ["method", "cell", "seed"]  # the columns that name a run


def client_scores(runs: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """One row per run and client with its test score in the round that counts: the columns of RUN,
    client, score."""
    parts = []
    for run in runs:
        scores = run.by_client(metric, select)
        table = pd.DataFrame({"client": scores.index, "score": scores.to_numpy()})
        parts.append(_of_run(table, run))
    return pd.concat(parts, ignore_index=True)


def by_client(
    runs: Sequence[Finished], metric: str, select: Select, methods: Sequence[str]
) -> pd.DataFrame:
    """Clients x methods: means over seeds. The index has the clients, by their own names where they
    have one, with their sensors and, where these differ, models. Both may be drawn by seed, so a
    client can have several."""
    wide = means(client_scores(runs, metric, select), "client", "score", methods)
    about = described(runs, metric)
    names = own_names(runs)
    wide.index = pd.Index(
        [f"{names.get(client, client)}: {about.get(client, '')}" for client in wide.index]
    )
    return wide


def own_names(runs: Sequence[Finished]) -> dict[int, str]:
    """The own names of the clients whose name is the same in all runs."""
    by_client: dict[int, set[str]] = {}
    for run in runs:
        for client in range(len(run.clients)):
            by_client.setdefault(client, set()).add(run.names.get(client, ""))
    return {
        client: name
        for client, names in by_client.items()
        if len(names) == 1
        for name in names
        if name
    }


def described(runs: Sequence[Finished], metric: str) -> dict[int, str]:
    """The sensors of every client that was scored in the last evaluated round and, where clients
    have different models, its models."""
    evaluated = last(runs, metric)
    own = evaluated[(evaluated["class"] == -1) & evaluated["own"]]
    about = {}
    for client in own["client"].unique():
        subsets = own.loc[own["client"] == client, "subset"].unique()
        about[int(client)] = ", ".join(sorted(subsets))
    if mixed(runs):
        for client in {client for run in runs for client in run.models}:
            models = sorted({run.models[client] for run in runs if client in run.models})
            about[client] = f"{about.get(client, '')}; {', '.join(models)}"
    return about


def last(runs: Sequence[Finished], metric: str) -> pd.DataFrame:
    """The test scores of the last evaluated round of every run, with the columns of RUN."""
    parts = []
    for run in runs:
        table = run.last_scores
        of_metric = table["metric"] == of_client(metric)
        parts.append(_of_run(table[(table["split"] == "test") & of_metric], run))
    return pd.concat(parts)


def sensor_scores(runs: Sequence[Finished], metric: str) -> pd.DataFrame:
    """The rows of `last` over all classes, with a column `sensors` that says whether these are all
    that the client has."""
    table = last(runs, metric)
    table = table[table["class"] == -1]
    whole = table["own"].map({True: " (all it has)", False: " alone"})
    return table.assign(sensors=table["subset"] + whole)


def by_subset(runs: Sequence[Finished], metric: str, methods: Sequence[str]) -> pd.DataFrame:
    """Sensors x methods: means over the clients that own them and over seeds."""
    return means(sensor_scores(runs, metric), "sensors", "value", methods)


def class_scores(runs: Sequence[Finished]) -> pd.DataFrame:
    """The rows of `last` for F1 with all sensors that a client has, with the name of the class in a
    column `label`."""
    table = last(runs, "f1")
    table = table[table["own"]]
    names = dict(enumerate(runs[0].fleet["labels"]))
    labels = [names.get(int(number), str(number)) for number in table["class"]]
    return table.assign(label=labels)


def by_class(runs: Sequence[Finished], methods: Sequence[str]) -> pd.DataFrame:
    """Classes x methods: mean F1 over clients and seeds. Empty where the task has no classes."""
    table = class_scores(runs)
    wide = means(table, "class", "value", methods)
    names = dict(zip(table["class"], table["label"], strict=True))
    wide.index = pd.Index([names[number] for number in wide.index])
    return wide


def means(table: pd.DataFrame, index: str, value: str, methods: Sequence[str]) -> pd.DataFrame:
    """The means of `value` as a table of `index` x methods."""
    if table.empty:
        return pd.DataFrame(columns=list(methods))
    wide = table.groupby([index, "method"])[value].agg(mean).unstack("method")
    return wide.reindex(columns=list(methods))


def mean(values: pd.Series[float]) -> float:
    """NaN if any value is: to leave out those that diverged would flatter a method."""
    return float(values.mean(skipna=False))


def _of_run(table: pd.DataFrame, run: Finished) -> pd.DataFrame:
    return table.assign(method=run.method, cell=run.place, seed=run.seed)
