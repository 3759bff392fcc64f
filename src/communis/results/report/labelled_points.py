"""Named points with whiskers in one large picture."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from communis.core.markup import element
from communis.results.report.svg import (
    BOTTOM,
    TOP,
    Axes,
    Dots,
    circles,
    frame,
    nothing,
    picture,
    ticks,
)

SIZE = 840, 420
LETTER, LINE = 6.4, 14.0  # pixels that a letter takes, and a line of text

Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class Point:
    """A point with its name, and how far its whiskers reach; NaN: it has none."""

    name: str
    colour: str
    x: float
    y: float
    dx: float
    dy: float


def point_chart(
    points: Sequence[Point],
    joined: Sequence[Sequence[Point]],
    title: str,
    x_label: str,
    y_label: str,
    least: tuple[float, float],
) -> Markup:
    """joined: rows of points that a line goes through; least: what x spans at least."""
    if not points:
        return nothing(title)
    across = [*least, *(x for point in points for x in _ends(point.x, point.dx))]
    up = [y for point in points for y in _ends(point.y, point.dy)]
    axes = Axes(ticks(min(across), max(across)), ticks(min(up), max(up)), *SIZE)
    parts = [frame(axes, title, x_label, y_label)]
    for row in joined:
        path = " ".join(axes.at(point.x, point.y) for point in row)
        parts.append(
            element(
                "polyline",
                points=path,
                fill="none",
                stroke="#94a3b8",
                stroke_width=1.5,
                stroke_dasharray="5 4",
            )
        )
    for point in points:
        (left, right), (low, high) = _ends(point.x, point.dx), _ends(point.y, point.dy)
        cross = f"M{axes.at(left, point.y)} L{axes.at(right, point.y)} "
        cross += f"M{axes.at(point.x, low)} L{axes.at(point.x, high)}"
        parts.append(element("path", d=cross, stroke=point.colour, opacity=".5"))
        parts += circles(Dots(point.name, point.colour, [point.x], [point.y]), axes, 4.5)
    return picture(title, [*parts, *_names(points, axes)], axes)


def _ends(value: float, reach: float) -> tuple[float, float]:
    return (value - reach, value + reach) if math.isfinite(reach) else (value, value)


def _names(points: Sequence[Point], axes: Axes) -> list[Markup]:
    """Names beside their points; where they would cover others a little off, with a thin line."""
    places = [axes.place(point.x, point.y) for point in points]
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    parts = []
    for point, (x, y) in zip(points, places, strict=True):
        beside, *others = _boxes(x, y, LETTER * len(point.name))
        free = (b for b in (beside, *others) if _fits(b, axes) and not _covers(b, taken))
        box = next(free, beside)
        taken.append(box)
        end, middle = (box[0] if box[0] > x else box[2]), (box[1] + box[3]) / 2
        if abs(middle - y) >= LINE:
            parts.append(
                element(
                    "line",
                    x1=f"{x:.1f}",
                    y1=f"{y:.1f}",
                    x2=f"{end:.1f}",
                    y2=f"{middle:.1f}",
                    stroke=point.colour,
                    opacity=".5",
                )
            )
        parts.append(element("text", point.name, x=f"{box[0]:.1f}", y=f"{middle + 4:.1f}"))
    return parts


def _boxes(x: float, y: float, width: float) -> Iterator[Box]:
    """Where a name could stand: right or left of its point, then further and further off."""
    for shift in sorted(range(-12, 13), key=abs):
        away = 9 + 1.5 * abs(shift)
        top = y + (shift - 0.5) * LINE
        for left in (x + away, x - away - width):
            yield left, top, left + width, top + LINE


def _fits(box: Box, axes: Axes) -> bool:
    left, top, right, bottom = box
    return left > axes.left and right < axes.width and top > TOP and bottom < axes.height - BOTTOM


def _covers(box: Box, taken: Sequence[Box]) -> bool:
    return any(
        box[0] < other[2] and other[0] < box[2] and box[1] < other[3] and other[1] < box[3]
        for other in taken
    )
