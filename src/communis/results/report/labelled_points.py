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
class Spot:
    """A point with its name, and how far its whiskers reach; NaN: it has none."""

    name: str
    colour: str
    x: float
    y: float
    dx: float
    dy: float


def spots(
    found: Sequence[Spot],
    joined: Sequence[Sequence[Spot]],
    title: str,
    x_label: str,
    y_label: str,
    least: tuple[float, float],
) -> Markup:
    """joined: rows of points that a line goes through; least: what x spans at least."""
    if not found:
        return nothing(title)
    across = [*least, *(x for spot in found for x in _ends(spot.x, spot.dx))]
    up = [y for spot in found for y in _ends(spot.y, spot.dy)]
    axes = Axes(ticks(min(across), max(across)), ticks(min(up), max(up)), *SIZE)
    parts = [frame(axes, title, x_label, y_label)]
    for row in joined:
        points = " ".join(axes.at(spot.x, spot.y) for spot in row)
        parts.append(
            element(
                "polyline",
                points=points,
                fill="none",
                stroke="#94a3b8",
                stroke_width=1.5,
                stroke_dasharray="5 4",
            )
        )
    for spot in found:
        (left, right), (low, high) = _ends(spot.x, spot.dx), _ends(spot.y, spot.dy)
        cross = f"M{axes.at(left, spot.y)} L{axes.at(right, spot.y)} "
        cross += f"M{axes.at(spot.x, low)} L{axes.at(spot.x, high)}"
        parts.append(element("path", d=cross, stroke=spot.colour, opacity=".5"))
        parts += circles(Dots(spot.name, spot.colour, [spot.x], [spot.y]), axes, 4.5)
    return picture(title, [*parts, *_names(found, axes)], axes)


def _ends(value: float, reach: float) -> tuple[float, float]:
    return (value - reach, value + reach) if math.isfinite(reach) else (value, value)


def _names(found: Sequence[Spot], axes: Axes) -> list[Markup]:
    """Names beside their points; where they would cover others a little off, with a thin line."""
    places = [axes.place(spot.x, spot.y) for spot in found]
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in places]
    parts = []
    for spot, (x, y) in zip(found, places, strict=True):
        beside, *others = _boxes(x, y, LETTER * len(spot.name))
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
                    stroke=spot.colour,
                    opacity=".5",
                )
            )
        parts.append(element("text", spot.name, x=f"{box[0]:.1f}", y=f"{middle + 4:.1f}"))
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
