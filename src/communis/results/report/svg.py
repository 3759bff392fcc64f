"""Curves, points and bars as SVG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from communis.core.markup import EMPTY, element, stacked
from communis.results.curves import Band

PALETTE = (
    "#2563eb",
    "#d97706",
    "#059669",
    "#dc2626",
    "#7c3aed",
    "#0891b2",
    "#be185d",
    "#65a30d",
    "#475569",
    "#78350f",
    "#14b8a6",
    "#f472b6",
    "#1e3a8a",
    "#ca8a04",
    "#38bdf8",
    "#881337",
    "#166534",
    "#a8a29e",
)
DASHES = (None, "7 3", "2 2", "9 3 2 3")
WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 72, 26, 34, 44
BAR = 38  # pixels of a bar with its name
TINY = 1e-11  # differences below are rounding
ROW = 26  # pixels of a value with its interval
LETTER, LINE = 7.0, 13.0  # pixels that a letter takes, and a line of text
LONGEST = 16  # letters of a name at the end of a line
NAMED = 12  # lines whose ends have names, at most


@dataclass(frozen=True)
class Curve:
    """A line with a band around it."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


@dataclass(frozen=True)
class Dots:
    """Points of one colour, under one name."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True)
class Axes:
    """The place of values in a picture; x and y are the ticks."""

    x: Sequence[float]
    y: Sequence[float]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: float = RIGHT

    def place(self, x: float, y: float) -> tuple[float, float]:
        """The pixels across and down."""
        (x0, x1), (y0, y1) = (self.x[0], self.x[-1]), (self.y[0], self.y[-1])
        across = self.left + (x - x0) / (x1 - x0) * (self.width - self.left - self.right)
        return across, self.height - BOTTOM - (y - y0) / (y1 - y0) * (self.height - TOP - BOTTOM)

    def at(self, x: float, y: float) -> str:
        across, down = self.place(x, y)
        return f"{across:.1f},{down:.1f}"


@dataclass(frozen=True)
class Whisker:
    """A value with its interval on a row of its own; NaN ends: it has none. dots: the values that
    it is the mean of."""

    name: str
    colour: str
    value: float
    low: float
    high: float
    dots: Sequence[float] = ()


def dashes(shade: str) -> str | None:
    """The dashes of a line beside its colour, for readers who do not see colours. Neighbours of
    the palette differ."""
    return DASHES[PALETTE.index(shade) % len(DASHES)] if shade in PALETTE else None


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def drawn(bands: Mapping[str, Band], colours: Mapping[str, str]) -> list[Curve]:
    """The curves of bands, in the colours of their names."""
    return [
        Curve(name, colours[name], band.x, band.mean, band.low, band.high)
        for name, band in bands.items()
    ]


def curves(
    lines: Sequence[Curve],
    title: str,
    x_label: str,
    y_label: str,
    integers: bool = False,
    powers: bool = False,
) -> Markup:
    """A chart of all lines on common axes, or a note that there is nothing to draw. integers: x has
    integer ticks; powers: y are logarithms to base 10."""
    lines = [line for line in lines if len(line.x)]
    if not lines:
        return nothing(title)
    x_ticks = ticks(min(min(c.x) for c in lines), max(max(c.x) for c in lines), integers)
    y_ticks = ticks(min(min(c.low) for c in lines), max(max(c.high) for c in lines))
    named = 1 < len(lines) <= NAMED
    longest = max(len(_short(line.name)) for line in lines)
    right = RIGHT + LETTER * longest if named else RIGHT
    axes = Axes(x_ticks, y_ticks, right=right)
    parts = [frame(axes, title, x_label, y_label, powers)]
    parts += _ends(lines, axes) if named else []
    for line in lines:
        upper = [axes.at(x, y) for x, y in zip(line.x, line.high, strict=True)]
        lower = [axes.at(x, y) for x, y in zip(line.x, line.low, strict=True)]
        if len(line.x) > 1:
            band = " ".join([*upper, *reversed(lower)])
            parts.append(element("polygon", points=band, fill=line.colour, opacity=".13"))
        points = " ".join(axes.at(x, y) for x, y in zip(line.x, line.y, strict=True))
        name = element("title", line.name)
        parts.append(
            element(
                "polyline",
                name,
                points=points,
                fill="none",
                stroke=line.colour,
                stroke_width=2,
                stroke_dasharray=dashes(line.colour),
            )
        )
        parts += circles(Dots(line.name, line.colour, line.x, line.y), axes)
    return picture(title, parts, axes)


def _ends(lines: Sequence[Curve], axes: Axes) -> list[Markup]:
    """The names of lines beside their ends, one below the other where ends are near."""
    places = sorted((axes.place(line.x[-1], line.y[-1])[1], i) for i, line in enumerate(lines))
    downs: list[float] = []
    for down, _ in places:
        downs.append(max(down, downs[-1] + LINE) if downs else down)
    lowest = float(axes.height - BOTTOM)
    for i in reversed(range(len(downs))):  # back up from below the axes
        downs[i] = min(downs[i], lowest)
        lowest = downs[i] - LINE
    return [
        element(
            "text",
            _short(lines[i].name),
            x=f"{axes.width - axes.right + 8:.1f}",
            y=f"{down + 4:.1f}",
            style=f"fill:color-mix(in srgb, {lines[i].colour} 60%, var(--ink))",
            class_="end",
        )
        for down, (_, i) in zip(downs, places, strict=True)
    ]


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def whiskers(
    rows: Sequence[Whisker], title: str, x_label: str, marks: Mapping[str, float]
) -> Markup:
    """Values with their intervals, one below the other, names on the left. marks: values that a
    dashed line goes through, if they are finite."""
    rows = [row for row in rows if math.isfinite(row.value)]
    if not rows:
        return nothing(title)
    marks = {name: x for name, x in marks.items() if math.isfinite(x)}
    ends = [x for row in rows for x in (row.low, row.high, row.value, *row.dots)]
    ends = [x for x in (*ends, *marks.values()) if math.isfinite(x)]
    left = 16 + round(LETTER * max(len(_short(row.name)) for row in rows))
    height = TOP + ROW * (len(rows) + bool(marks)) + BOTTOM
    y = (0.0, float(len(rows) + bool(marks)))
    axes = Axes(ticks(min(ends), max(ends)), y, WIDTH, height, left)
    parts = [frame(axes, title, x_label)]
    for name, x in marks.items():
        across = axes.place(x, 0)[0]
        at = f"{across:.1f}"
        parts.append(
            element(
                "line",
                x1=at,
                x2=at,
                y1=TOP,
                y2=height - BOTTOM,
                class_="mark",
                stroke_dasharray="4 3",
            )
        )
        side = "end" if across > axes.width / 2 else "start"
        beside = across + (-5 if side == "end" else 5)
        parts.append(element("text", name, x=f"{beside:.1f}", y=TOP + 14, text_anchor=side))
    for i, row in enumerate(rows):
        height_of = len(rows) - i - 0.5
        across, down = axes.place(row.value, height_of)
        parts.append(
            element(
                "text",
                element("title", row.name),
                _short(row.name),
                x=axes.left - 8,
                y=f"{down + 4:.1f}",
                text_anchor="end",
                class_="name",
            )
        )
        for x in row.dots:
            dot = axes.place(x, height_of)[0]
            parts.append(
                element(
                    "circle",
                    cx=f"{dot:.1f}",
                    cy=f"{down:.1f}",
                    r=3,
                    fill="none",
                    stroke=row.colour,
                    opacity=".7",
                )
            )
        if math.isfinite(row.low) and math.isfinite(row.high):
            ends_at = [f"{axes.place(x, height_of)[0]:.1f}" for x in (row.low, row.high)]
            parts.append(
                element(
                    "line",
                    x1=ends_at[0],
                    x2=ends_at[1],
                    y1=f"{down:.1f}",
                    y2=f"{down:.1f}",
                    stroke=row.colour,
                    stroke_width=2,
                )
            )
        parts += circles(Dots(row.name, row.colour, [row.value], [height_of]), axes, 4.5, True)
    return picture(title, parts, axes)


def scatter(groups: Sequence[Dots], title: str, x_label: str, y_label: str) -> Markup:
    """All points on common axes."""
    groups = [group for group in groups if len(group.x)]
    if not groups:
        return nothing(title)
    x_ticks = ticks(min(min(g.x) for g in groups), max(max(g.x) for g in groups))
    y_ticks = ticks(min(min(g.y) for g in groups), max(max(g.y) for g in groups))
    axes = Axes(x_ticks, y_ticks)
    parts = [frame(axes, title, x_label, y_label)]
    return picture(title, [*parts, *(c for g in groups for c in circles(g, axes))], axes)


def bars(
    rows: Mapping[str, Mapping[str, float]],
    colours: Mapping[str, str],
    title: str,
    x_label: str,
    longest: float,
) -> Markup:
    """A bar below every name, made of parts end to end. longest: the end of the axis."""
    axes = Axes(ticks(0, longest), (0, len(rows)), WIDTH, TOP + BAR * len(rows) + BOTTOM, RIGHT)
    parts = [frame(axes, title, x_label)]
    for i, (name, values) in enumerate(rows.items()):
        left, bottom = axes.place(0, len(rows) - i - 1)
        parts.append(element("text", name, x=left, y=f"{bottom - 22:.1f}"))
        for kind, value in values.items():
            width = axes.place(value, 0)[0] - axes.place(0, 0)[0]
            parts.append(
                element(
                    "rect",
                    element("title", f"{kind}: {value:.3g}"),
                    x=f"{left:.1f}",
                    y=f"{bottom - 17:.1f}",
                    width=f"{width:.1f}",
                    height=13,
                    fill=colours[kind],
                )
            )
            left += width
    return picture(title, parts, axes)


def ticks(low: float, high: float, integers: bool = False, count: int = 5) -> list[float]:
    """Round numbers that span low to high; integers: integers."""
    span = next(x for x in (high - low, abs(high), 1.0) if x > TINY)
    raw = max(span / count, 1.0) if integers else span / count
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [s * power for s in (1, 2, 2.5, 5, 10) if s * power >= raw * 0.999]
    step = next(s for s in steps if not integers or s == int(s))
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [round(i * step, 12) for i in range(first, last + 1)]


def circles(dots: Dots, axes: Axes, radius: float = 2.6, across_only: bool = False) -> list[Markup]:
    """across_only: y is a place, not a value."""
    parts = []
    for x, y in zip(dots.x, dots.y, strict=True):
        across, down = axes.place(x, y)
        value = f"{x:.4g}" if across_only else f"{y:.4g} at {x:.4g}"
        name = element("title", f"{dots.name}: {value}")
        parts.append(
            element(
                "circle", name, cx=f"{across:.1f}", cy=f"{down:.1f}", r=radius, fill=dots.colour
            )
        )
    return parts


def picture(title: str, parts: Sequence[Markup], axes: Axes) -> Markup:
    box = f"0 0 {axes.width} {axes.height}"
    return element("svg", stacked(*parts), viewBox=box, role="img", aria_label=title)


def nothing(title: str) -> Markup:
    return element("p", f"{title}: nothing was evaluated.", class_="note")


def frame(axes: Axes, title: str, x_label: str, y_label: str = "", powers: bool = False) -> Markup:
    """The title, the labels, the ticks and the grid lines: across if y has a label, else down.
    powers: y are logarithms to base 10."""
    right, bottom = axes.width - axes.right, axes.height - BOTTOM
    parts = [element("text", title, x=axes.left, y=18, class_="title")]
    for y in axes.y if y_label else ():
        down, text = axes.place(axes.x[0], y)[1], f"{10**y:.2g}" if powers else f"{y:g}"
        at = f"{down:.1f}"
        parts.append(element("line", x1=axes.left, x2=right, y1=at, y2=at, class_="grid"))
        parts.append(element("text", text, x=axes.left - 6, y=f"{down + 4:.1f}", text_anchor="end"))
    for x in axes.x:
        across = f"{axes.place(x, axes.y[0])[0]:.1f}"
        if not y_label:
            parts.append(element("line", x1=across, x2=across, y1=TOP, y2=bottom, class_="grid"))
        parts.append(element("text", f"{x:g}", x=across, y=bottom + 16, text_anchor="middle"))
    middle = (axes.left + right) / 2
    parts.append(element("text", x_label, x=middle, y=axes.height - 8, text_anchor="middle"))
    turned = f"translate(14 {axes.height / 2}) rotate(-90)"
    parts.append(element("text", y_label, transform=turned, text_anchor="middle"))
    return EMPTY.join(parts)
