"""The sections on the methods of one cell: scores, costs, curves, clients, sensors, classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.core.pooled import of_client
from communis.core.selection import Select
from communis.results.breakdown import by_class, by_client, by_subset
from communis.results.compare import Row, mixed, ranking, rows, runs_by_method
from communis.results.curves import losses, scores_by_megabytes, scores_by_round
from communis.results.finished import Finished
from communis.results.over_cells import Selected
from communis.results.report.html import (
    charts,
    details,
    dot,
    heading,
    legend,
    note,
    shaded,
    table,
)
from communis.results.report.summary import pictures
from communis.results.report.svg import curves, drawn
from communis.results.wording.numbers import count, kilobytes, number, plain, versus
from communis.results.wording.scores import CHOICES, choices, counts, how_to_read


def sections(
    runs: Sequence[Finished],
    metric: str,
    select: Select,
    shades: Mapping[str, str],
    explained: bool = False,
) -> list[Markup]:
    """shades: the colours of methods; explained: how to read them is on the page already."""
    return [
        *main(runs, metric, select, shades, explained),
        *course(runs, metric, shades),
        *breakdown(runs, metric, select),
    ]


def main(
    runs: Sequence[Finished],
    metric: str,
    select: Select,
    shades: Mapping[str, str],
    explained: bool = False,
) -> list[Markup]:
    """The methods by their scores and costs."""
    compared = rows(runs, metric, select)
    order = [row.method for row in compared]
    drawn_scores, differences = pictures(runs, order, metric, select, shades, explained)
    read = note(how_to_read(runs, compared, metric, select))
    return [
        heading("Which method serves this fleet, at which cost?"),
        drawn_scores,
        _scores(compared, shades),
        _costs(compared, shades),
        differences,
        details(
            f"Other rounds to count, and differences to {order[0]} by seed"
            if len(order) > 1
            else "Other rounds to count",
            selections(f"{plain(metric)} of", compared),
        ),
        EMPTY if explained else details("How to read these numbers", read),
    ]


def course(runs: Sequence[Finished], metric: str, shades: Mapping[str, str]) -> list[Markup]:
    """Scores and losses round by round."""
    label = plain(metric)
    colours = {name: shades[name] for name in runs_by_method(runs)}
    return [
        heading("How they got there"),
        legend(colours),
        note("Lines are means over seeds, bands reach from the lowest to the highest."),
        charts(
            curves(
                drawn(scores_by_round(runs, metric), colours),
                f"Test {label} by round",
                "round",
                label,
                integers=True,
            ),
            curves(
                drawn(scores_by_megabytes(runs, metric), colours),
                f"Test {label} by traffic",
                "MB sent and received by the whole fleet",
                label,
            ),
            curves(
                drawn(losses(runs), colours),
                "Training loss by round",
                "round",
                "loss",
                integers=True,
            ),
        ),
    ]


def breakdown(runs: Sequence[Finished], metric: str, select: Select) -> list[Markup]:
    """Scores by client, by the sensors that were there and by class. The first two, which are of
    one metric, have the same shades; F1 has those from 0 to 1."""
    methods = ranking(runs, metric, select)[0]
    label = plain(of_client(metric))
    clients = by_client(runs, metric, select, methods)
    sensors = by_subset(runs, metric, methods)
    values = np.concatenate([clients.to_numpy().ravel(), sensors.to_numpy().ravel()])
    finite = values[np.isfinite(values.astype(float))]
    span = (float(finite.min()), float(finite.max())) if len(finite) else None
    return [
        heading(f"Test {label} of every client"),
        note(f"In {counts(select, metric)}."),
        shaded(clients, "client: sensors; model" if mixed(runs) else "client: sensors", span),
        heading(f"Test {label} by the sensors that were there"),
        note(
            "Each client is scored with all its sensors and with each of them alone, after the "
            "last round; means over the clients that own them. The shades are those of the table "
            "of clients."
        ),
        shaded(sensors, "sensors", span),
        _classes(runs, methods),
    ]


def _scores(compared: Sequence[Row], colours: Mapping[str, str]) -> Markup:
    shown = list(compared[0].scores)
    lines = [
        [
            dot(colours[row.method]) + row.method,
            *(number(row.scores[name]) for name in shown),
            number(row.weakest),
        ]
        for row in compared
    ]
    return table(["method", *map(plain, shown), "weakest\nclient"], lines)


def _costs(compared: Sequence[Row], colours: Mapping[str, str]) -> Markup:
    heads = ["cost", "parameters", "KB\nup", "KB\ndown", "KB\nboth", "MB\nin all"]
    lines = [
        [
            dot(colours[row.method]) + row.method,
            count(row.parameters),
            kilobytes(row.bytes_up),
            kilobytes(row.bytes_down),
            kilobytes(row.bytes_both),
            f"{row.total_bytes / 1e6:,.1f}",
            f"{row.seconds:.2f}",
            str(row.refused),
        ]
        for row in compared
    ]
    return table([*heads, "s per\nround", "refused"], lines)


def selections(corner: str, compared: Sequence[Selected]) -> Markup:
    """The ways to choose a round side by side, with the verdicts of the one that was used."""
    ways = choices(compared)
    several = len(compared) > 1
    heads = [corner, *(CHOICES[way].replace(" ", "\n") for way in ways)]
    if several:
        heads.append(f"against {compared[0].method}")
    lines = []
    for row in compared:
        line = [row.method, *(number(row.selected[way]) for way in ways)]
        if several:
            line.append(versus(row.difference, row.verdict))
        lines.append(line)
    return table(heads, lines, text=(0, len(ways) + 1))


def _classes(runs: Sequence[Finished], methods: Sequence[str]) -> Markup:
    wide = by_class(runs, methods)
    if wide.empty:
        return EMPTY
    about = note("With all sensors that a client has, after the last round. Shades go from 0 to 1.")
    return heading("Test F1 of every class") + about + shaded(wide, "class", (0.0, 1.0))
