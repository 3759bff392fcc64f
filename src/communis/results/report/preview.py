"""A preview of one client of a fleet, as a page and for the terminal: its sensors, and when they
are there."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.markup import element, stacked
from communis.data.recordings.windows import TRAIN
from communis.fleet.availability.plot import client_map, sensor_map, sensor_text, suite_map
from communis.fleet.availability.trace import SPLITS, Trace
from communis.fleet.fleet import Fleet
from communis.results.report.html import document, heading, note, warning
from communis.results.report.svg import colour
from communis.results.sensing import missing_by_split

WIDTH, HEIGHT = 420, 150
STEPS = 400  # points of a line, at most
ABOUT = (
    "Blue: there; grey: missing. Time is the client's own, its recordings laid end to end; parts "
    "that belong to another split are drawn as there."
)


def text(fleet: Fleet, trace: Trace, client: int) -> str:
    """The sensor x time map of a client, split by split."""
    suite = _suite(fleet, client)
    gone = missing_by_split(trace, suite, client)
    parts = [f"{fleet.called(client)}: {', '.join(suite)}"]
    for split, name in enumerate(SPLITS):
        seconds = float(trace.seconds[client, split])
        if seconds:
            drawn = sensor_text(client_map(trace, suite, client, split), seconds)
            parts += [f"\n{name}: {gone[split]:.0%} of the sensors' time is missing", drawn]
    return "\n".join(parts)


def page(fleet: Fleet, trace: Trace, client: int, title: str) -> Markup:
    suite = _suite(fleet, client)
    maps = [
        sensor_map(
            client_map(trace, suite, client, split), seconds, f"{fleet.called(client)}, {name}"
        )
        for split, name in enumerate(SPLITS)
        if (seconds := float(trace.seconds[client, split]))
    ]
    owned = suite_map(fleet.suites, fleet.windows.modalities, "clients x sensors")
    body = [
        element("h1", title),
        *map(warning, fleet.windows.notes),
        heading("Who has which sensor"),
        element("div", owned, class_="maps"),
        heading(f"When the sensors of {fleet.called(client)} are there"),
        note(ABOUT),
        *(element("div", drawn, class_="maps") for drawn in maps),
        heading(f"A window of {fleet.called(client)}"),
        _window(fleet, client, suite),
    ]
    return document(title, body)


def _suite(fleet: Fleet, client: int) -> tuple[Modality, ...]:
    if not 0 <= client < len(fleet):
        raise CommunisError(f"no client {client}; there are 0 to {len(fleet) - 1}")
    return fleet.suites[client]


def _window(fleet: Fleet, client: int, suite: tuple[Modality, ...]) -> Markup:
    """The first training window, or the first at all, that has most of the sensors."""
    windows = fleet.windows
    rows = np.arange(len(windows))[fleet.rows(client)]
    if not len(rows):
        return note("It has no windows.")
    flags: Mapping[Modality, Array] = windows.present
    there = np.sum([flags[m][rows] if m in flags else np.ones(len(rows)) for m in suite], axis=0)
    row = rows[np.argmax(2 * there + (windows.split[rows] == TRAIN))]
    target = windows.target[row]
    if windows.labels and target.ndim == 0:
        what = f"class {windows.labels[int(target)]}"
    else:
        what = f"target {np.array2string(np.asarray(target), precision=2, threshold=8)}"
    figures = []
    for m in suite:
        x = np.asarray(windows.inputs[m][row], np.float64)
        kind, unit = windows.kinds.get(m, "series"), windows.units.get(m, "")
        name = f"{m} [{unit}]" if unit else m
        shape = " x ".join(str(n) for n in x.shape)
        draw = {"series": _lines, "points": _cloud}.get(kind, _picture)
        figures.append(element("figure", draw(x), element("figcaption", f"{name}, {shape}")))
    shown = element("div", *figures, class_="charts maps")
    return stacked(note(f"{windows.seconds:g} s, {what}."), shown)


def _lines(x: Array) -> Markup:
    """One line per channel; gaps where samples are missing."""
    x = x[:, :: max(1, -(-x.shape[1] // STEPS))]
    if not np.isfinite(x).any():
        return note("missing")
    low, high = np.nanmin(x), np.nanmax(x)
    across = np.linspace(40, WIDTH - 5, x.shape[1])
    down = HEIGHT - 8 - (x - low) / ((high - low) or 1.0) * (HEIGHT - 16)
    parts = [
        element("text", f"{high:.3g}", x=2, y=14),
        element("text", f"{low:.3g}", x=2, y=HEIGHT - 4),
    ]
    for i, line in enumerate(down):
        pen, path = "M", []
        for at, y in zip(across, line, strict=True):
            if np.isfinite(y):
                path.append(f"{pen}{at:.1f},{y:.1f}")
            pen = "L" if np.isfinite(y) else "M"
        parts.append(element("path", d=" ".join(path), fill="none", stroke=colour(i)))
    return _drawing(parts)


def _cloud(x: Array) -> Markup:
    """Points from the front and from above; the first three features are x, y, z."""
    x = x[:3, np.isfinite(x[:3]).all(0)]
    if not x.size:
        return note("no point")
    parts = [
        element("text", "x, z", x=10, y=12),
        element("text", "x, y", x=WIDTH / 2 + 10, y=12),
    ]
    for side, (a, b) in enumerate(((0, 2), (0, 1))):
        low = np.array([x[a].min(), x[b].min()])
        span = max(float(np.ptp(x[a])), float(np.ptp(x[b]))) or 1.0
        left = side * WIDTH / 2 + 10
        for across, up in zip(x[a], x[b], strict=True):
            cx = f"{left + (across - low[0]) / span * (HEIGHT - 20):.1f}"
            cy = f"{HEIGHT - 10 - (up - low[1]) / span * (HEIGHT - 20):.1f}"
            parts.append(element("circle", cx=cx, cy=cy, r=1.5, fill=colour(side)))
    return _drawing(parts)


def _drawing(parts: Sequence[Markup]) -> Markup:
    return element("svg", *parts, width=WIDTH, viewBox=f"0 0 {WIDTH} {HEIGHT}")


def _picture(x: Array) -> Markup:
    """The first channel (frame, antenna) in shades of grey, dark is low; missing is black."""
    values = x[0]
    known = np.isfinite(values)
    if not known.any():
        return note("missing")
    low, high = values[known].min(), values[known].max()
    grey = np.where(known, 30 + 225 * (values - low) / ((high - low) or 1.0), 0)
    png = base64.b64encode(_png(grey.astype(np.uint8))).decode()
    return element(
        "img",
        alt=f"{low:.3g} to {high:.3g}",
        width=WIDTH,
        height=HEIGHT,
        src=f"data:image/png;base64,{png}",
    )


def _png(grey: Array) -> bytes:
    """An 8-bit grey image (height, width) as a PNG file."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    height, width = grey.shape
    rows = np.hstack([np.zeros((height, 1), np.uint8), grey]).tobytes()
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
