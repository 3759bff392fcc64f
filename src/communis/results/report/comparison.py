"""The sections on the methods of one cell: scores, costs, curves, clients, sensors, classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from math import nan

import pandas as pd
from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.core.pooled import of_client
from communis.core.selection import Select
from communis.results.breakdown import by_client, by_subset, last, wide_table
from communis.results.cells import Selected
from communis.results.compare import Row, grouped, mixed, rows
from communis.results.finished import Finished
from communis.results.report.html import charts, dot, heading, legend, note, shaded, table
from communis.results.report.svg import Curve, band, curves
from communis.results.wording.numbers import count, kilobytes, number, plain, versus
from communis.results.wording.scores import CHOICES, choices, counts, how_to_read


def sections(
    runs: Sequence[Finished],
    metric: str,
    select: Select,
    shades: Mapping[str, str],
    explained: bool = False,
) -> list[Markup]:
    """shades: the colours of methods; explained: the page says elsewhere how to read it."""
    found = rows(runs, metric, select)
    colours = {row.method: shades[row.method] for row in found}
    methods, label, of_one = list(colours), plain(metric), plain(of_client(metric))
    return [
        heading("Which method serves this fleet, at which cost?"),
        _summary(found, metric, colours),
        selections(f"{label} of", found),
        EMPTY if explained else note(how_to_read(runs, found, metric, select)),
        heading("How they got there"),
        legend(colours),
        note("Lines are means over seeds, bands reach from the lowest to the highest."),
        charts(
            curves(
                _by_round(runs, metric, colours), f"Test {label} by round", "round", label, True
            ),
            curves(
                _by_bytes(runs, metric, colours),
                f"Test {label} by traffic",
                "MB sent and received by the whole fleet",
                label,
            ),
            curves(_losses(runs, colours), "Training loss by round", "round", "loss", True),
        ),
        heading(f"Test {of_one} of every client"),
        note(f"In {counts(select, metric)}."),
        shaded(
            by_client(runs, metric, select, methods),
            "client: sensors; model" if mixed(runs) else "client: sensors",
        ),
        heading(f"Test {of_one} by the sensors that were there"),
        note(
            "Each client is scored with all its sensors and with each of them alone, after the "
            "last round; means over the clients that own them."
        ),
        shaded(by_subset(runs, metric, methods), "sensors"),
        _classes(runs, methods),
    ]


def _summary(found: Sequence[Row], metric: str, colours: Mapping[str, str]) -> Markup:
    shown = list(found[0].scores)
    heads = [
        *("method", *map(plain, shown), "weakest\nclient", "parameters"),
        *("KB\nup", "KB\ndown", "KB\nboth", "MB\nin all", "s per\nround", "refused"),
    ]
    lines = [
        [
            dot(colours[row.method]) + row.method,
            *(number(row.scores[m]) for m in shown),
            *(number(row.weakest), count(row.parameters)),
            *(kilobytes(row.bytes_up), kilobytes(row.bytes_down)),
            kilobytes(row.bytes_up + row.bytes_down),
            *(f"{row.total_bytes / 1e6:,.1f}", f"{row.seconds:.2f}", str(row.refused)),
        ]
        for row in found
    ]
    return table(heads, lines)


def selections(corner: str, found: Sequence[Selected]) -> Markup:
    """The ways to choose a round side by side, with the verdicts of the one that was used."""
    ways = choices(found)
    heads = [corner, *(CHOICES[s].replace(" ", "\n") for s in ways)]
    lines = [[x.method, *(number(x.selected[s]) for s in ways)] for x in found]
    if len(found) > 1:
        heads.append(f"against {found[0].method}")
        words = [versus(x.difference, x.verdict) for x in found]
        lines = [[*line, text] for line, text in zip(lines, words, strict=True)]
    return table(heads, lines, text=(0, len(ways) + 1))


def _by_round(runs: Sequence[Finished], metric: str, colours: Mapping[str, str]) -> list[Curve]:
    return [
        band(
            name,
            colours[name],
            [float(r.round) for r in group[0].evaluated],
            [[r.scores.get(f"test.{metric}", nan) for r in run.evaluated] for run in group],
        )
        for name, group in grouped(runs).items()
    ]


def _by_bytes(runs: Sequence[Finished], metric: str, colours: Mapping[str, str]) -> list[Curve]:
    lines = []
    for name, group in grouped(runs).items():
        traffic = accumulate(r.bytes_up + r.bytes_down for r in group[0].records)
        megabytes = dict(zip((r.round for r in group[0].records), traffic, strict=True))
        x = [megabytes[r.round] / 1e6 for r in group[0].evaluated]
        ys = [[r.scores.get(f"test.{metric}", nan) for r in run.evaluated] for run in group]
        lines.append(band(name, colours[name], x, ys))
    return lines


def _losses(runs: Sequence[Finished], colours: Mapping[str, str]) -> list[Curve]:
    return [
        band(
            name,
            colours[name],
            [float(r.round) for r in group[0].records],
            [[r.loss for r in run.records] for run in group],
        )
        for name, group in grouped(runs).items()
    ]


def _classes(runs: Sequence[Finished], methods: Sequence[str]) -> Markup:
    found = last(runs, "f1")
    if found.empty:
        return EMPTY
    found = found[found["own"]]
    wide = wide_table(found, "class", methods)
    names = dict(enumerate(runs[0].fleet["labels"]))
    wide.index = pd.Index([names.get(int(c), str(c)) for c in wide.index])
    about = note("With all sensors that a client has, after the last round.")
    return heading("Test F1 of every class") + about + shaded(wide, "class")
