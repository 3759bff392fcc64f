"""The sections on the methods of one cell: scores, costs, curves, clients, sensors, classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.core.pooled import of_client
from communis.core.selection import Select
from communis.results.breakdown import by_class, by_client, by_subset
from communis.results.compare import Row, mixed, rows
from communis.results.curves import losses, scores_by_megabytes, scores_by_round
from communis.results.finished import Finished
from communis.results.over_cells import Selected
from communis.results.report.html import charts, dot, heading, legend, note, shaded, table
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
    compared = rows(runs, metric, select)
    colours = {row.method: shades[row.method] for row in compared}
    methods = list(colours)
    label = plain(metric)
    label_of_client = plain(of_client(metric))
    return [
        heading("Which method serves this fleet, at which cost?"),
        _summary(compared, metric, colours),
        selections(f"{label} of", compared),
        EMPTY if explained else note(how_to_read(runs, compared, metric, select)),
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
        heading(f"Test {label_of_client} of every client"),
        note(f"In {counts(select, metric)}."),
        shaded(
            by_client(runs, metric, select, methods),
            "client: sensors; model" if mixed(runs) else "client: sensors",
        ),
        heading(f"Test {label_of_client} by the sensors that were there"),
        note(
            "Each client is scored with all its sensors and with each of them alone, after the "
            "last round; means over the clients that own them."
        ),
        shaded(by_subset(runs, metric, methods), "sensors"),
        _classes(runs, methods),
    ]


def _summary(compared: Sequence[Row], metric: str, colours: Mapping[str, str]) -> Markup:
    shown = list(compared[0].scores)
    heads = ["method", *map(plain, shown), "weakest\nclient", "parameters"]
    heads += ["KB\nup", "KB\ndown", "KB\nboth", "MB\nin all", "s per\nround", "refused"]
    lines = []
    for row in compared:
        lines.append(
            [
                dot(colours[row.method]) + row.method,
                *(number(row.scores[name]) for name in shown),
                number(row.weakest),
                count(row.parameters),
                kilobytes(row.bytes_up),
                kilobytes(row.bytes_down),
                kilobytes(row.bytes_both),
                f"{row.total_bytes / 1e6:,.1f}",
                f"{row.seconds:.2f}",
                str(row.refused),
            ]
        )
    return table(heads, lines)


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
    about = note("With all sensors that a client has, after the last round.")
    return heading("Test F1 of every class") + about + shaded(wide, "class")
