"""Plots of availability: a client's sensors over time, as SVG or text, and the sensors that each
client owns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.markup import element, stacked
from communis.fleet.availability.trace import Trace

THERE, GONE = "#2563eb", "#e5e7eb"
SHADES = "░▒▓█"  # from rarely present to always present; a space: never present
ROW, PAD, WIDTH = 18, 8, 640
LEVELS = 8


def there_by_cell(intervals: Array, seconds: float, cells: int) -> Array:
    """Returns (cells,): the share of each of `cells` equal periods in which nothing is missing."""
    edges = np.linspace(0, seconds, cells + 1)
    if not len(intervals) or seconds <= 0:
        return np.ones(cells)
    missed = np.concatenate([[0.0], np.cumsum(np.diff(intervals, axis=1))])
    missed_at_edges = np.column_stack([missed[:-1], missed[1:]]).ravel()
    cumulative = np.interp(edges, intervals.ravel(), missed_at_edges, left=0.0)
    share: Array = np.clip(1 - np.diff(cumulative) / (seconds / cells), 0, 1)
    return share


def client_map(
    trace: Trace, suite: Sequence[Modality], client: int, split: int
) -> dict[str, Array]:
    """Returns the missing intervals of every sensor of a client, for `sensor_map` and
    `sensor_text`."""
    return {m: trace.intervals(client, m, split) for m in sorted(suite)}


def sensor_text(sensors: Mapping[str, Array], seconds: float, width: int = 60) -> str:
    """Returns one line per sensor: its name, a block per period, the share of time it is
    present."""
    margin = max((len(name) for name in sensors), default=0)
    lines = []
    for name, intervals in sensors.items():
        there = there_by_cell(intervals, seconds, width)
        level = np.ceil(there * len(SHADES) - 1e-9).astype(int)
        bar = "".join((" " + SHADES)[i] for i in level)
        lines.append(f"{name:<{margin}} |{bar}| {there.mean():4.0%}")
    end = f"{seconds:.0f} s"
    return "\n".join([*lines, f"{'':<{margin}}  0 s{end:>{max(width - 3, 0)}}"])


def sensor_map(sensors: Mapping[str, Array], seconds: float, title: str) -> Markup:
    """Returns an SVG with a row per sensor, time to the right, blue where the sensor is present."""
    left = PAD + 7 * max((len(name) for name in sensors), default=0) + PAD
    bottom = ROW + PAD + ROW * len(sensors)
    parts = [_text(PAD, ROW - 4, title)]
    for i, (name, intervals) in enumerate(sensors.items()):
        top = ROW + PAD + i * ROW
        there = there_by_cell(intervals, seconds, WIDTH)
        parts.append(_text(PAD, top + ROW - 6, name))
        parts.append(_rect(left, top, WIDTH, ROW - 3, GONE))
        parts += _bars(there, left, top, f"{name}: present {there.mean():.0%} of the time")
    parts.append(_text(left, bottom + ROW - 4, "0 s"))
    parts.append(_text(left + WIDTH, bottom + ROW - 4, f"{seconds:.0f} s", "end"))
    return _svg(left + WIDTH + PAD, bottom + ROW + PAD, title, parts)


def suite_map(
    suites: Sequence[Sequence[Modality]], modalities: Sequence[Modality], title: str
) -> Markup:
    """Returns an SVG with a row per client, a column per modality, blue where the client owns the
    sensor."""
    row = max(2, min(ROW, 600 // max(len(suites), 1)))
    column = 7 * max((len(m) for m in modalities), default=0) + PAD
    left, top = 44, 2 * ROW + PAD
    parts = [_text(PAD, ROW - 4, title)]
    parts += [_text(left + i * column, top - 5, m) for i, m in enumerate(modalities)]
    every = max(1, -(-ROW // row))  # thin rows have no room for every client number
    for k, suite in enumerate(suites):
        if k % every == 0:
            parts.append(_text(left - PAD, top + k * row + min(row, 12), str(k), "end"))
        for i, m in enumerate(modalities):
            colour = THERE if m in suite else GONE
            gap = 1 if row > 3 else 0
            parts.append(_rect(left + i * column, top + k * row, column - 2, row - gap, colour))
    return _svg(left + column * len(modalities), top + row * len(suites) + PAD, title, parts)


def _bars(there: Array, left: int, top: int, tip: str) -> list[Markup]:
    """Returns one rectangle for each run of equal cells, so that the size of the plot does not grow
    with the number of interruptions."""
    level = np.ceil(there * LEVELS - 1e-9).astype(int)
    first = np.flatnonzero(np.diff(level, prepend=-1))
    length = np.diff(first, append=len(level))
    return [
        _rect(left + int(x), top, int(n), ROW - 3, THERE, level[x] / LEVELS, tip)
        for x, n in zip(first, length, strict=True)
        if level[x]
    ]


def _rect(
    x: int, y: int, width: int, height: int, fill: str, opacity: float = 1.0, tip: str = ""
) -> Markup:
    return element(
        "rect",
        *([element("title", tip)] if tip else []),
        x=x,
        y=y,
        width=width,
        height=height,
        fill=fill,
        opacity=f"{opacity:g}" if opacity < 1 else None,
    )


def _text(x: int, y: int, text: str, anchor: str = "start") -> Markup:
    return element("text", text, x=x, y=y, text_anchor=anchor)


def _svg(width: int, height: int, title: str, parts: Sequence[Markup]) -> Markup:
    width = max(width, 2 * PAD + 7 * len(title))
    return element(
        "svg",
        stacked(*parts),
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
        role="img",
        aria_label=title,
        font_family="monospace",
        font_size=11,
    )
