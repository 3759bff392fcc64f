"""Runs, their scores, and the methods compared by them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import fields

import numpy as np
import pandas as pd

from communis.core.names import MOST_FREQUENT
from communis.core.selection import SELECTS, Select
from communis.results import breakdown, confusion, predictions
from communis.results.alarms import Alarm
from communis.results.alarms import alarms as find_alarms
from communis.results.clientwise import Clientwise, clientwise
from communis.results.compare import Row, cost, in_order, metrics, rows, runs_by_cell, weakest
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.frames.columns import (
    ALL,
    ESTIMATE,
    METHOD,
    RUN,
    each_cell,
    frame,
    named,
    of_estimate,
    of_run,
    stack,
)
from communis.results.modalities import alone
from communis.results.newcomers import by_client as newcomers_by_client
from communis.results.newcomers import newcomers as of_newcomers
from communis.results.over_cells import Line, Selected, averages, lines
from communis.results.overhead import private

NONE = Estimate.of(())  # no score
MEAN, WEAKEST = "mean", "weakest"  # over clients, or of the one with the worst score


def runs(finished: Sequence[Finished]) -> pd.DataFrame:
    columns = (
        *RUN,
        "folder",
        "data",
        "rounds",
        "rounds_planned",
        "complete",
        "clients",
        "attackers",
        "parameters_per_client",
        "private_parameters_per_client",
        "bytes_up_per_client_and_round",
        "bytes_down_per_client_and_round",
        "bytes_total",
        "seconds_per_round",
        "refused",
    )
    table = []
    for run in finished:
        own = cost([run])
        table.append(
            {
                **of_run(run),
                "folder": str(run.path),
                "data": run.config["data"]["name"],
                "rounds": len(run.records),
                "rounds_planned": run.planned,
                "complete": run.complete,
                "clients": len(run.clients),
                "attackers": len(run.attackers),
                "parameters_per_client": own.parameters,
                "private_parameters_per_client": private([run]),
                "bytes_up_per_client_and_round": own.bytes_up,
                "bytes_down_per_client_and_round": own.bytes_down,
                "bytes_total": own.total_bytes,
                "seconds_per_round": own.seconds,
                "refused": own.refused,
            }
        )
    return frame(table, columns)


def levels(finished: Sequence[Finished]) -> pd.DataFrame:
    """Where in the grid every cell lies."""
    table = []
    for place, inside in runs_by_cell(finished).items():
        for axis, level in inside[0].cell.items():
            table.append({"cell": place, "axis": axis, "level": level})
    return frame(table, ("cell", "axis", "level"))


def settings(finished: Sequence[Finished]) -> pd.DataFrame:
    """All settings of every run, by dotted key; values as JSON."""
    table = []
    for run in finished:
        for key, value in _flat("", run.config):
            table.append({**of_run(run), "key": key, "value": json.dumps(value, default=str)})
    return frame(table, (*RUN, "key", "value"))


def _flat(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), inner)
    else:
        yield prefix, value


def rounds(finished: Sequence[Finished]) -> pd.DataFrame:
    columns = (
        *RUN,
        "round",
        "clients",
        "refused",
        "loss",
        "bytes_up",
        "bytes_down",
        "bytes_framing",
        "seconds",
        "seconds_evaluation",
        "simulated_seconds",
        "simulated_joules",
        "consensus_distance",
        "attack_distance",
    )
    table = []
    for run in finished:
        for record in run.records:
            table.append(
                {
                    **of_run(run),
                    "round": record.round,
                    "clients": len(record.cohort),
                    "refused": len(record.refused),
                    "loss": record.loss,
                    "bytes_up": record.bytes_up,
                    "bytes_down": record.bytes_down,
                    "bytes_framing": record.bytes_framing,
                    "seconds": record.seconds,
                    "seconds_evaluation": record.seconds_evaluation,
                    "simulated_seconds": record.virtual_seconds,
                    "simulated_joules": record.virtual_joules,
                    "consensus_distance": record.consensus_distance,
                    "attack_distance": record.attack_distance,
                }
            )
    return frame(table, columns)


def round_scores(finished: Sequence[Finished]) -> pd.DataFrame:
    """The means over clients of every evaluated round."""
    table = []
    for run in finished:
        for record in run.evaluated:
            for key, score in record.scores.items():
                split, _, metric = key.partition(".")
                about = {"round": record.round, "split": split, "metric": metric, "score": score}
                table.append({**of_run(run), **about})
    return frame(table, (*RUN, "round", "split", "metric", "score"))


def run_scores(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """The values that `scores` and `selections` are means of."""
    table = []
    for inside in runs_by_cell(finished).values():
        for run in inside:
            for name in in_order(inside, metric):
                score = run.final(name, select, by=metric)
                table.append(_run_score(run, name, select, MEAN, score))
            worst = weakest(run, metric, select)
            table.append(_run_score(run, metric, select, WEAKEST, worst))
            for way in SELECTS:
                if way != select:
                    table.append(_run_score(run, metric, way, MEAN, run.final(metric, way)))
    return frame(table, (*RUN, "metric", "select", "over_clients", "score"))


def _run_score(
    run: Finished, metric: str, select: Select, over_clients: str, score: float
) -> dict[str, object]:
    about = {"metric": metric, "select": select, "over_clients": over_clients, "score": score}
    return {**of_run(run), **about}


def compared(finished: Sequence[Finished], metric: str, select: Select) -> dict[str, list[Row]]:
    """The rows of a comparison by cell."""
    return {place: rows(inside, metric, select) for place, inside in runs_by_cell(finished).items()}


def over_cells(finished: Sequence[Finished], metric: str, select: Select) -> list[Line]:
    """The methods over all cells of a grid; empty where there is no grid."""
    return lines(finished, metric, select) if len(runs_by_cell(finished)) > 1 else []


def scores(
    finished: Sequence[Finished],
    by_cell: dict[str, list[Row]],
    metric: str,
    select: Select,
) -> pd.DataFrame:
    table = []
    for place, inside in by_cell.items():
        for row in inside:
            method = {"method": row.method, "cell": place}
            for name, estimate in row.scores.items():
                about = {"metric": name, "over_clients": MEAN}
                table.append({**method, **about, **of_estimate(estimate)})
            about = {"metric": metric, "over_clients": WEAKEST}
            table.append({**method, **about, **of_estimate(row.weakest)})
    if len(by_cell) > 1:
        shown = list(dict.fromkeys([metric, *metrics(finished)]))
        for name, means in averages(finished, shown, metric, select).items():
            for shown_metric, estimate in means.items():
                about = {"metric": shown_metric, "over_clients": MEAN}
                table.append({"method": name, "cell": ALL, **about, **of_estimate(estimate)})
    return frame(table, (*METHOD, "metric", "over_clients", *ESTIMATE))


def selections(by_cell: dict[str, list[Row]], over: Sequence[Line]) -> pd.DataFrame:
    """The primary metric by each way to choose the round that counts."""
    table = []
    for place, inside in _and_all(by_cell, over).items():
        for row in inside:
            for way, estimate in row.selected.items():
                about = {"method": row.method, "cell": place, "select": way}
                table.append({**about, **of_estimate(estimate)})
    return frame(table, (*METHOD, "select", *ESTIMATE))


def differences(by_cell: dict[str, list[Row]], over: Sequence[Line]) -> pd.DataFrame:
    """The primary metric minus that of the best method, paired by seed. The verdict of the best
    method itself is empty."""
    table = []
    for place, inside in _and_all(by_cell, over).items():
        for row in inside:
            about = {"method": row.method, "cell": place, "against": inside[0].method}
            verdict = {"verdict": row.verdict}
            table.append({**about, **of_estimate(row.difference), **verdict})
    return frame(table, (*METHOD, "against", *ESTIMATE, "verdict"))


def paired_differences(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """The primary metric minus that of the reference, paired by client within seeds."""
    table = []
    for place, inside in each_cell(finished).items():
        for row in clientwise(inside, metric, select):
            table.append({"cell": place, **vars(row)})
    return frame(table, ("method", "cell", *(f.name for f in fields(Clientwise)[1:])))


def alarms(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """What weakens the scores; runs: in how many this is so."""
    table = map(vars, find_alarms(finished, metric, select))
    return frame(table, [f.name for f in fields(Alarm)])


def _and_all(by_cell: dict[str, list[Row]], over: Sequence[Line]) -> dict[str, Sequence[Selected]]:
    """The rows of every cell, and of a grid the lines over all cells under ALL."""
    return {**by_cell, ALL: over}


def costs(by_cell: dict[str, list[Row]]) -> pd.DataFrame:
    columns = (
        *METHOD,
        "parameters_per_client",
        "bytes_up_per_client_and_round",
        "bytes_down_per_client_and_round",
        "bytes_both_per_client_and_round",
        "bytes_total",
        "seconds_per_round",
        "refused",
    )
    table = []
    for place, inside in by_cell.items():
        for row in inside:
            table.append(
                {
                    "method": row.method,
                    "cell": place,
                    "parameters_per_client": row.parameters,
                    "bytes_up_per_client_and_round": row.bytes_up,
                    "bytes_down_per_client_and_round": row.bytes_down,
                    "bytes_both_per_client_and_round": row.bytes_both,
                    "bytes_total": row.total_bytes,
                    "seconds_per_round": row.seconds,
                    "refused": row.refused,
                }
            )
    return frame(table, columns)


def client_scores(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """The primary metric of every client in every run."""
    columns = (*RUN, "client", "name", "sensors", "model", "device", "score")
    parts = []
    for run in finished:
        table = breakdown.client_scores([run], metric, select)
        devices = {client.get("id"): client.get("device", "") for client in run.clients}
        sensors = ["+".join(run.sensors.get(client, ())) for client in table["client"]]
        models = [run.models.get(client, "") for client in table["client"]]
        of_client = [devices.get(client, "") for client in table["client"]]
        own = [run.names.get(client, "") for client in table["client"]]
        parts.append(table.assign(name=own, sensors=sensors, model=models, device=of_client))
    return stack(parts, columns)


def clients(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """The primary metric of every client: means over seeds."""
    parts = []
    for place, inside in runs_by_cell(finished).items():
        table = breakdown.client_scores(inside, metric, select)
        by_client = table.groupby(["method", "client"])["score"]
        means = by_client.agg(score=breakdown.mean, runs="size").reset_index()
        names = breakdown.own_names(inside)
        own = [names.get(client, "") for client in means["client"]]
        parts.append(means.assign(cell=place, name=own))
    return stack(parts, (*METHOD, "client", "name", "score", "runs"))


def newcomers(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """The scores of clients that took no part in training; without a mean where the method has no
    common model."""
    table = []
    for place, inside in each_cell(finished).items():
        served = of_newcomers(inside, metric, select)
        if served is None:
            continue
        for row in served.rows:
            method = {"method": row.method, "cell": place}
            over = {(name, MEAN): row.scores.get(name, NONE) for name in served.metrics}
            over[served.metrics[0], WEAKEST] = row.weakest
            for (name, over_clients), estimate in over.items():
                about = {"metric": name, "over_clients": over_clients, "unscored": row.why}
                table.append({**method, **about, **of_estimate(estimate)})
        for name, estimate in served.control.items():
            method = {"method": MOST_FREQUENT, "cell": place}
            about = {"metric": name, "over_clients": MEAN, "unscored": ""}
            table.append({**method, **about, **of_estimate(estimate)})
    return frame(table, (*METHOD, "metric", "over_clients", *ESTIMATE, "unscored"))


def newcomer_differences(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """The primary metric on newcomers minus that of the method that is best on them."""
    table = []
    for place, inside in each_cell(finished).items():
        served = of_newcomers(inside, metric, select)
        for row in served.rows if served else ():
            if served and row.common:
                about = {"method": row.method, "cell": place, "against": served.rows[0].method}
                verdict = {"verdict": row.verdict}
                table.append({**about, **of_estimate(row.difference), **verdict})
    return frame(table, (*METHOD, "against", *ESTIMATE, "verdict"))


def newcomer_scores(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """The primary metric of every newcomer that was scored in every run."""
    parts = []
    for run in finished:
        if run.newcomers:
            scores = newcomers_by_client(run, metric, select)
            table = pd.DataFrame({"client": scores.index, "score": scores.to_numpy()})
            sensors = ["+".join(run.sensors.get(client, ())) for client in table["client"]]
            parts.append(named(table.assign(sensors=sensors), run))
    return stack(parts, (*RUN, "client", "sensors", "score"))


def sensor_scores(finished: Sequence[Finished], metric: str) -> pd.DataFrame:
    """The primary metric by the sensors that were there, after the last round: means over the
    clients that own them and over seeds, of n values."""
    parts = []
    for place, inside in runs_by_cell(finished).items():
        table = breakdown.sensor_scores(inside, metric)
        table = table.assign(all_it_has=table["own"])
        by_sensors = table.groupby(["method", "subset", "all_it_has"])["value"]
        means = by_sensors.agg(score=breakdown.mean, n="size").reset_index()
        parts.append(means.assign(cell=place).rename(columns={"subset": "sensors"}))
    return stack(parts, (*METHOD, "sensors", "all_it_has", "score", "n"))


def class_scores(finished: Sequence[Finished]) -> pd.DataFrame:
    """F1 of every class with all sensors that a client has, after the last round: means over
    clients and seeds, of n values."""
    parts = []
    for place, inside in runs_by_cell(finished).items():
        by_class = breakdown.class_scores(inside).groupby(["method", "class", "label"])["value"]
        means = by_class.agg(f1=breakdown.mean, n="size").reset_index()
        parts.append(means.assign(cell=place))
    return stack(parts, (*METHOD, "class", "label", "f1", "n"))


def confusions(finished: Sequence[Finished], select: Select) -> pd.DataFrame:
    """Test windows by actual and predicted class; share: of the windows of the actual one."""
    table = []
    for place, inside in runs_by_cell(finished).items():
        for found in confusion.confusions(inside, select):
            shares = found.shares
            for i, j in np.ndindex(found.windows.shape):
                table.append(
                    {
                        "method": found.method,
                        "cell": place,
                        "label": found.labels[i],
                        "predicted": found.labels[j],
                        "windows": int(found.windows[i, j]),
                        "share": float(shares[i, j]),
                        "support": int(found.windows[i].sum()),
                    }
                )
    return frame(table, (*METHOD, "label", "predicted", "windows", "share", "support"))


def modalities(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """The scores with single modalities."""
    table = []
    for place, inside in each_cell(finished).items():
        by_modality = alone(inside, metric, select)
        if by_modality is None:
            continue
        for method, views in by_modality.rows.items():
            for view, estimate in views.items():
                about = {"method": method, "cell": place, "view": view}
                common = {"common_model": by_modality.common}
                table.append({**about, **common, **of_estimate(estimate)})
    return frame(table, (*METHOD, "view", "common_model", *ESTIMATE))


def views(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """Other ways to predict; the view of a method's prediction itself is empty."""
    table = []
    for place, inside in each_cell(finished).items():
        for row in predictions.views(inside, metric, select):
            for name, estimate in row.values.items():
                if estimate is not None:
                    about = {"method": row.method, "cell": place, "view": row.view}
                    table.append({**about, "metric": name, **of_estimate(estimate)})
    return frame(table, (*METHOD, "view", "metric", *ESTIMATE))


def measures(finished: Sequence[Finished], metric: str, select: Select) -> pd.DataFrame:
    """What methods say of the test windows beside their predictions."""
    table = []
    for place, inside in each_cell(finished).items():
        for row in predictions.measures(inside, metric, select):
            for name, estimate in row.values.items():
                if estimate is not None:
                    about = {"method": row.method, "cell": place, "measure": name}
                    table.append({**about, **of_estimate(estimate)})
    return frame(table, (*METHOD, "measure", *ESTIMATE))
