"""Time and energy by the device clock: of a round, of every kind of device, and until a score is
reached."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
from markupsafe import Markup

from communis.core.markup import EMPTY, element, stacked
from communis.core.metrics import better
from communis.core.selection import Select
from communis.results.compare import runs_by_cell, runs_by_method, scored
from communis.results.finished import Finished
from communis.results.report.html import charts, heading, legend, note, table
from communis.results.report.labelled_points import Point, point_chart
from communis.results.report.svg import bars, curves, drawn
from communis.results.timing import (
    Timing,
    computing_share,
    coverages,
    score_curves,
    timing,
    tradeoffs,
)
from communis.results.timing import devices as devices_of
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
    """Empty where runs have no clock. Curves and devices are shown for a single cell only.
    explained: how to read it is on the page already."""
    runs = scored(runs)
    times = timing(runs, metric, select, targets)
    if times is None:
        return EMPTY
    parts = [heading("Time and energy")]
    parts.append(EMPTY if explained else note(about_time(runs, times, metric)))
    parts.append(_table("method", of_rounds(times), times))
    if math.isfinite(times.target):
        parts.append(_table(goal(times.target, metric), of_target(times), times))
    parts.append(_speedups(runs, times, metric, select, shades))
    if len(runs_by_cell(runs)) == 1:
        names = [row.method for row in times.rows]
        parts += [devices(runs, names), _by_time(runs, times, metric, shades)]
    return stacked(*parts)


def _table(corner: str, columns: Columns, times: Timing) -> Markup:
    lines = [[row.method, *(show(row) for show in columns.values())] for row in times.rows]
    return table([corner, *columns], lines)


def _speedups(
    runs: Sequence[Finished],
    times: Timing,
    metric: str,
    select: Select,
    shades: Mapping[str, str],
) -> Markup:
    """Score against speedup, one point per method; empty for a single one."""
    if len(times.rows) < 2:
        return EMPTY
    label = plain(metric)
    points = {
        name: Point(
            name,
            shades[name],
            both.speedup.mean,
            both.score.mean,
            both.speedup.spread,
            both.score.spread,
        )
        for name, both in tradeoffs(runs, times, metric, select).items()
    }
    rows = [
        [points[name] for name in names if name in points]
        for names in coverages(runs_by_method(runs))
    ]
    text = (
        f"Right is faster, {'up' if better(metric) > 0 else 'down'} is better; whiskers are the "
        "standard deviation over seeds."
    )
    if joined := [row for row in rows if len(row) > 1]:
        text += " A line joins runs that differ in nothing but their coverage."
    across = f"speedup of a simulated round against {times.base}"
    title = f"Test {label} against speedup"
    chart = point_chart(list(points.values()), joined, title, across, label, least=(1.0, 1.5))
    return note(text) + element("div", chart, class_="large")


def devices(runs: Sequence[Finished], methods: Sequence[str]) -> Markup:
    """The time that every kind of client computes, communicates and waits in a round: one picture
    for each method."""
    by_method = devices_of(runs)
    tables = {name: by_method[name] for name in methods if name in by_method}
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
    share = computing_share(tables)
    text = f"Of the time that devices are busy they compute {share:.0%}"
    return f"{text}." if share > 0.5 else f"{text}: speedups here are about traffic most of all."


def _by_time(
    runs: Sequence[Finished], times: Timing, metric: str, shades: Mapping[str, str]
) -> Markup:
    """The score over simulated seconds and over joules."""
    label = plain(metric)
    by_seconds = score_curves(runs, times, metric, "seconds")
    by_joules = score_curves(runs, times, metric, "joules")
    in_seconds = drawn(by_seconds, shades)
    in_joules = drawn(by_joules, shades)
    return stacked(
        element("h3", f"Test {label} by time and energy"),
        legend({name: shades[name] for name in by_seconds}),
        note("Means over seeds; bands reach from the lowest to the highest."),
        charts(
            curves(in_seconds, f"Test {label} by time", "simulated seconds", label),
            curves(in_joules, f"Test {label} by energy", "joules of the whole fleet", label),
        ),
    )
