"""Time and energy by the device clock: what a round takes, who waits for whom, and what a score
costs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from markupsafe import Markup

from communis.core.markup import EMPTY, element, stacked
from communis.core.metrics import better
from communis.core.selection import Select
from communis.results.compare import cells, estimate, grouped, scored
from communis.results.finished import Finished
from communis.results.report.html import charts, heading, legend, note, table
from communis.results.report.labelled_points import Spot, spots
from communis.results.report.svg import Curve, band, bars, curves
from communis.results.timing import Timing, by_type, coverages, progress, timing
from communis.results.wording.clock import Columns, about_time, goal, of_rounds, of_target
from communis.results.wording.numbers import plain, sized

PARTS = {"compute": "#2563eb", "communication": "#d97706", "idle": "#cbd5e1"}
TYPES = 8  # kinds of clients drawn at most


def section(
    runs: Sequence[Finished],
    metric: str,
    select: Select,
    targets: Sequence[float],
    shades: Mapping[str, str],
    explained: bool = False,
) -> Markup:
    """Empty where runs have no clock. Over several cells without what only one cell has: curves
    and devices. explained: the page says elsewhere how to read it."""
    runs = scored(runs)
    found = timing(runs, metric, select, targets)
    if found is None:
        return EMPTY
    parts = [heading("Time and energy")]
    parts.append(EMPTY if explained else note(about_time(runs, found, metric)))
    parts.append(_table("method", of_rounds(found), found))
    if math.isfinite(found.target):
        parts.append(_table(goal(found.target, metric), of_target(found), found))
    parts.append(_speedups(runs, found, metric, select, shades))
    if len(cells(runs)) == 1:
        names = [row.method for row in found.rows]
        parts += [devices(runs, names), _courses(runs, found, metric, shades)]
    return stacked(*parts)


def _table(corner: str, columns: Columns, found: Timing) -> Markup:
    lines = [[row.method, *(show(row) for show in columns.values())] for row in found.rows]
    return table([corner, *columns], lines)


def _speedups(
    runs: Sequence[Finished],
    found: Timing,
    metric: str,
    select: Select,
    shades: Mapping[str, str],
) -> Markup:
    """Score against speedup, one point per method; empty for a single one."""
    if len(found.rows) < 2:
        return EMPTY
    groups, places, label = grouped(runs), cells(runs), plain(metric)
    points = {}
    for row in found.rows:
        name, speed = row.method, row.speedup
        score = estimate(groups[name], metric, select, places)
        if math.isfinite(score.mean) and math.isfinite(speed.mean):
            points[name] = Spot(
                name, shades[name], speed.mean, score.mean, speed.spread, score.spread
            )
    rows = [[points[name] for name in names if name in points] for names in coverages(groups)]
    text = (
        f"Right is faster, {'up' if better(metric) > 0 else 'down'} is better; whiskers are the "
        "standard deviation over seeds."
    )
    if joined := [row for row in rows if len(row) > 1]:
        text += " A line joins runs that differ in nothing but their coverage."
    across = f"speedup of a simulated round against {found.base}"
    title = f"Test {label} against speedup"
    drawn = spots(list(points.values()), joined, title, across, label, least=(1.0, 1.5))
    return note(text) + element("div", drawn, class_="large")


def devices(runs: Sequence[Finished], methods: Sequence[str]) -> Markup:
    """What every kind of client does in a round: a picture for each method."""
    groups = grouped(runs)
    tables = {name: by_type(groups[name]) for name in methods}
    tables = {name: t for name, t in tables.items() if len(t)}
    if not tables:
        return EMPTY
    longest = max(float(t[[*PARTS]].sum(axis=1).max()) for t in tables.values())
    drawn = []
    for name, t in tables.items():
        rows = {
            f"{kind} ({sized(line['clients'])} clients)": {part: line[part] for part in PARTS}
            for kind, line in t.head(TYPES).to_dict("index").items()
        }
        drawn.append(bars(rows, PARTS, name, "simulated seconds of a round", longest))
    most = max(map(len, tables.values()))
    more = f" The {TYPES} most frequent of {most} kinds of clients." if most > TYPES else ""
    about = (
        "What a device does in a round, by what it is and senses; mean over clients, rounds and "
        "seeds. All pictures have the same scale, and a round ends with the slowest device, for "
        f"which the others wait. {_busy(tables.values())}{more}"
    )
    return element("h3", "Who waits for whom") + note(about) + legend(PARTS) + charts(*drawn)


def _busy(tables: Iterable[pd.DataFrame]) -> str:
    """Whether speedups are about training or about traffic."""
    table = pd.concat(tables)
    totals = table[["compute", "communication"]].mul(table["clients"], axis=0).sum()
    share = totals["compute"] / max(totals.sum(), 1e-300)
    text = f"Of the time that devices are busy they compute {share:.0%}"
    return f"{text}." if share > 0.5 else f"{text}: speedups here are about traffic most of all."


def _courses(
    runs: Sequence[Finished], found: Timing, metric: str, shades: Mapping[str, str]
) -> Markup:
    """The score over simulated seconds and over joules."""
    groups, label = grouped(runs), plain(metric)
    names = [row.method for row in found.rows if math.isfinite(row.seconds.mean)]

    def lines(column: str) -> list[Curve]:
        drawn = []
        for name in names:
            tables = [progress(run, metric) for run in groups[name]]
            joint = pd.concat([t[[column, "score"]] for t in tables], axis=1, join="inner")
            across = joint[[column]].mean(axis=1)  # seeds draw devices and windows of their own
            ys = joint[["score"]].to_numpy().T.tolist()
            drawn.append(band(name, shades[name], across.tolist(), ys))
        return drawn

    return stacked(
        element("h3", f"Test {label} by time and energy"),
        legend({name: shades[name] for name in names}),
        note("Means over seeds; bands reach from the lowest to the highest."),
        charts(
            curves(lines("seconds"), f"Test {label} by time", "simulated seconds", label),
            curves(lines("joules"), f"Test {label} by energy", "joules of the whole fleet", label),
        ),
    )
