"""The cells of an experiment's grid side by side: methods x cells, and every method as a map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import pandas as pd

from communis.compare import Row, cells, estimate, grouped, judge, paired, rows
from communis.finished import Finished
from communis.metrics.estimate import WITHIN, Estimate, ranked
from communis.metrics.selection import SELECTS, Select
from communis.report.comparison import selections
from communis.report.html import heading, note, shaded, table
from communis.report.words import how_to_read_cells, number, plain


@dataclass(frozen=True)
class Line:
    """One method over all cells."""

    method: str
    cells: dict[str, Row]  # those it was run in
    average: Estimate  # over cells seed by seed, then over seeds; of the seeds that all cells have
    selected: dict[Select, Estimate]  # the same by the round that counts
    difference: Estimate  # of the averages, to the best method's, paired by seed
    verdict: str


def lines(runs: Sequence[Finished], metric: str, select: Select) -> list[Line]:
    """One line per method, best average first."""
    groups, places = grouped(runs), cells(runs)
    tables = {
        place: {row.method: row for row in rows(group, metric, select)}
        for place, group in places.items()
    }
    averages = {name: estimate(group, metric, select, places) for name, group in groups.items()}
    order = ranked(averages, metric)
    best = groups[order[0]]
    found = []
    for name in order:
        group = groups[name]
        difference = paired(group, best, metric, select)
        found.append(
            Line(
                method=name,
                cells={place: table[name] for place, table in tables.items() if name in table},
                average=averages[name],
                selected={s: estimate(group, metric, s, places) for s in SELECTS},
                difference=difference,
                verdict=judge(group, best, difference, metric),
            )
        )
    return found


def mark(verdict: str) -> str:
    """* for the best method, ~ for one that cannot be told from it."""
    return "" if verdict not in ("", WITHIN) else "~" if verdict else "*"


def sections(runs: Sequence[Finished], metric: str, select: Select) -> list[str]:
    found, label = lines(runs, metric, select), plain(metric)
    best = found[0]
    return [
        heading(f"Test {label} of every method in every cell"),
        _grid(found, list(cells(runs)), metric),
        selections("average of", found),
        note(how_to_read_cells(best.method, best.average.seeds, select)),
        heading(f"Test {label} as maps"),
        note("One map per method, all with the same shades: the darker, the higher."),
        *_maps(found, runs, metric),
    ]


def _grid(found: Sequence[Line], places: Sequence[str], metric: str) -> str:
    def cell(line: Line, place: str) -> str:
        if place not in line.cells:
            return "-"
        row = line.cells[place]
        return _bold(number(row.scores[metric]), mark(row.verdict))

    heads = ["method", *(escape(place).replace(", ", "<br>") for place in places), "average"]
    body = [
        [
            escape(line.method),
            *(cell(line, place) for place in places),
            _bold(number(line.average), mark(line.verdict)),
        ]
        for line in found
    ]
    return table(heads, body)


def _bold(text: str, sign: str) -> str:
    return f"<b>{text}&nbsp;*</b>" if sign == "*" else f"{text}&nbsp;{sign or '&nbsp;'}"


def _maps(found: Sequence[Line], runs: Sequence[Finished], metric: str) -> list[str]:
    """Rows are the levels of the first axis, columns those of the others."""
    where = {run.place: _corner(run) for run in runs}
    down = list(dict.fromkeys(row for row, _ in where.values()))
    across = list(dict.fromkeys(column for _, column in where.values()))
    means = [row.scores[metric].mean for line in found for row in line.cells.values()]
    span = float(pd.Series(means).min()), float(pd.Series(means).max())
    axes = list(runs[0].cell)
    corner = " \\ ".join([axes[0], ", ".join(axes[1:])]) if len(axes) > 1 else ", ".join(axes)
    parts = []
    for line in found:
        values = pd.DataFrame(index=down, columns=across, dtype=float)
        for place, row in line.cells.items():
            values.loc[where[place]] = row.scores[metric].mean
        drawn = shaded(values, corner, span)
        parts.append(f"<figure><figcaption>{escape(line.method)}</figcaption>{drawn}</figure>")
    return ["<div class='row'>", *parts, "</div>"]


def _corner(run: Finished) -> tuple[str, str]:
    """Row and column of a cell in a map; with one axis there is one row."""
    first, *rest = run.cell.values() or [""]
    return (first, ", ".join(rest)) if rest else ("", first)
