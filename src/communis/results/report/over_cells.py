"""The cells of an experiment's grid side by side: methods x cells, and every method as a map."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from markupsafe import Markup

from communis.core.markup import EMPTY, Content, element
from communis.core.metrics import better
from communis.core.selection import Select
from communis.results.compare import runs_by_cell
from communis.results.finished import Finished
from communis.results.over_cells import Line, averages, lines, mark, other_metrics
from communis.results.report.comparison import selections
from communis.results.report.html import details, figure, heading, note, row, shaded, table
from communis.results.report.summary import pictures
from communis.results.wording.numbers import JOINT, number, plain
from communis.results.wording.scores import counts, how_to_read


def sections(
    runs: Sequence[Finished], metric: str, select: Select, shades: Mapping[str, str]
) -> list[Markup]:
    compared = lines(runs, metric, select)
    order = [line.method for line in compared]
    label = plain(metric)
    return [
        heading(f"Test {label} of every method in every cell"),
        _grid(compared, list(runs_by_cell(runs)), metric),
        *pictures(runs, order, metric, select, shades),
        details(
            "Other rounds to count, and differences by seed", selections("average of", compared)
        ),
        details("How to read these numbers", note(how_to_read(runs, compared, metric, select))),
        heading(f"Test {label} as maps"),
        note("One map per method, all with the same shades: the darker, the higher."),
        _maps(compared, runs, metric),
        _others(compared, runs, metric, select),
    ]


def _grid(compared: Sequence[Line], places: Sequence[str], metric: str) -> Markup:
    def cell(line: Line, place: str) -> Content:
        if place not in line.cells:
            return "-"
        row = line.cells[place]
        return _bold(number(row.scores[metric]), mark(row.verdict))

    heads = ["method", *(place.replace(", ", "\n") for place in places), "average"]
    body = [
        [
            line.method,
            *(cell(line, place) for place in places),
            _bold(number(line.average), mark(line.verdict)),
        ]
        for line in compared
    ]
    return table(heads, body)


def _others(
    compared: Sequence[Line], runs: Sequence[Finished], metric: str, select: Select
) -> Markup:
    """Averages over cells of the other scores; empty where there are none."""
    shown = other_metrics(runs, metric)
    if not shown:
        return EMPTY
    means = averages(runs, shown, metric, select)
    body = [
        [line.method, *(number(means[line.method][name]) for name in shown)] for line in compared
    ]
    about = (
        f"In {counts(select, metric)}; averaged over cells seed by seed, then mean ± standard "
        "deviation over seeds."
    )
    if lower := [plain(name) for name in shown if better(name) < 0]:
        about += f" The lower, the better: {', '.join(lower)}."
    return heading("Other scores") + note(about) + table(["method", *map(plain, shown)], body)


def _bold(text: str, sign: str) -> Content:
    signed = f"{text}{JOINT}{sign or JOINT}"
    return element("b", signed) if sign == "*" else signed


def _maps(compared: Sequence[Line], runs: Sequence[Finished], metric: str) -> Markup:
    """One map per method: rows are the levels of the first axis, columns those of the others."""
    where = {place: _position(group[0]) for place, group in runs_by_cell(runs).items()}
    down = list(dict.fromkeys(first for first, _ in where.values()))
    across = list(dict.fromkeys(column for _, column in where.values()))
    means = [row.scores[metric].mean for line in compared for row in line.cells.values()]
    span = float(pd.Series(means).min()), float(pd.Series(means).max())
    axes = list(runs[0].cell)
    corner = " \\ ".join([axes[0], ", ".join(axes[1:])]) if len(axes) > 1 else ", ".join(axes)
    parts = []
    for line in compared:
        values = pd.DataFrame(index=down, columns=across, dtype=float)
        for place, cell in line.cells.items():
            values.loc[where[place]] = cell.scores[metric].mean
        parts.append(figure(line.method, shaded(values, corner, span)))
    return row(*parts)


def _position(run: Finished) -> tuple[str, str]:
    """The row and the column of a cell in a map; with one axis there is one row."""
    first, *rest = run.cell.values() or [""]
    return (first, ", ".join(rest)) if rest else ("", first)
