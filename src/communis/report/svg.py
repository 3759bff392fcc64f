"""Curves and scattered points as plain SVG text."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

PALETTE = (
    "#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f",
    "#475569", "#a16207", "#0f766e", "#9333ea", "#b91c1c", "#1d4ed8",
)  # fmt: skip
WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 72, 16, 34, 44


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
    """Points that belong together."""

    name: str
    colour: str
    x: Sequence[float]
    y: Sequence[float]


def colour(index: int) -> str:
    return PALETTE[index % len(PALETTE)]


def curves(
    lines: Sequence[Curve], title: str, x_label: str, y_label: str, whole: bool = False
) -> str:
    """A chart of all lines on common axes; where there is nothing to draw, it says so. whole: what
    x counts has no fractions."""
    lines = [line for line in lines if len(line.x)]
    if not lines:
        return f"<p class='note'>{escape(title)}: nothing was evaluated.</p>"
    x_ticks = ticks(min(min(c.x) for c in lines), max(max(c.x) for c in lines), whole)
    y_ticks = ticks(min(min(c.low) for c in lines), max(max(c.high) for c in lines))
    at = _placed(x_ticks, y_ticks)
    parts = [_frame(x_ticks, y_ticks, at, title, x_label, y_label)]
    for line in lines:
        upper = [at(x, y) for x, y in zip(line.x, line.high, strict=True)]
        lower = [at(x, y) for x, y in zip(line.x, line.low, strict=True)]
        name = f"<title>{escape(line.name)}</title>"
        if len(line.x) > 1:
            band = " ".join([*upper, *reversed(lower)])
            parts.append(f"<polygon points='{band}' fill='{line.colour}' opacity='.13'/>")
        points = " ".join(at(x, y) for x, y in zip(line.x, line.y, strict=True))
        parts.append(
            f"<polyline points='{points}' fill='none' stroke='{line.colour}' stroke-width='2'>"
            f"{name}</polyline>"
        )
        parts += _circles(Dots(line.name, line.colour, line.x, line.y), at)
    return _svg(title, parts)


def scatter(groups: Sequence[Dots], title: str, x_label: str, y_label: str) -> str:
    """All points on common axes."""
    groups = [group for group in groups if len(group.x)]
    if not groups:
        return f"<p class='note'>{escape(title)}: nothing was evaluated.</p>"
    x_ticks = ticks(min(min(g.x) for g in groups), max(max(g.x) for g in groups))
    y_ticks = ticks(min(min(g.y) for g in groups), max(max(g.y) for g in groups))
    at = _placed(x_ticks, y_ticks)
    parts = [_frame(x_ticks, y_ticks, at, title, x_label, y_label)]
    return _svg(title, [*parts, *(circle for g in groups for circle in _circles(g, at))])


def ticks(low: float, high: float, whole: bool = False, count: int = 5) -> list[float]:
    """Round numbers that span low to high; whole: without fractions."""
    span = high - low or abs(high) or 1.0
    raw = max(span / count, 1.0) if whole else span / count
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [s * power for s in (1, 2, 2.5, 5, 10) if s * power >= raw * 0.999]
    step = next(s for s in steps if not whole or s == int(s))
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [round(i * step, 12) for i in range(first, last + 1)]


def _placed(x_ticks: Sequence[float], y_ticks: Sequence[float]) -> Callable[[float, float], str]:
    """From values to a place in the picture, "across,down"."""
    (x0, x1), (y0, y1) = (x_ticks[0], x_ticks[-1]), (y_ticks[0], y_ticks[-1])

    def at(x: float, y: float) -> str:
        across = LEFT + (x - x0) / (x1 - x0) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (y - y0) / (y1 - y0) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{down:.1f}"

    return at


def _circles(dots: Dots, at: Callable[[float, float], str]) -> list[str]:
    parts = []
    for x, y in zip(dots.x, dots.y, strict=True):
        across, down = at(x, y).split(",")
        parts.append(
            f"<circle cx='{across}' cy='{down}' r='2.6' fill='{dots.colour}'>"
            f"<title>{escape(dots.name)}: {y:.4g} at {x:.4g}</title></circle>"
        )
    return parts


def _svg(title: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return (
        f"<svg viewBox='0 0 {WIDTH} {HEIGHT}' role='img' aria-label='{escape(title)}'>{body}</svg>"
    )


def _frame(
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    at: Callable[[float, float], str],
    title: str,
    x_label: str,
    y_label: str,
) -> str:
    parts = [f"<text x='{LEFT}' y='18' class='title'>{escape(title)}</text>"]
    for y in y_ticks:
        down = at(x_ticks[0], y).split(",")[1]
        parts.append(
            f"<line x1='{LEFT}' x2='{WIDTH - RIGHT}' y1='{down}' y2='{down}' class='grid'/>"
        )
        parts.append(f"<text x='{LEFT - 6}' y='{float(down) + 4}' text-anchor='end'>{y:g}</text>")
    for x in x_ticks:
        across = at(x, y_ticks[0]).split(",")[0]
        parts.append(
            f"<text x='{across}' y='{HEIGHT - BOTTOM + 16}' text-anchor='middle'>{x:g}</text>"
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f"<text x='{middle}' y='{HEIGHT - 8}' text-anchor='middle'>{escape(x_label)}</text>"
    )
    parts.append(
        f"<text transform='translate(14 {HEIGHT / 2}) rotate(-90)' text-anchor='middle'>"
        f"{escape(y_label)}</text>"
    )
    return "".join(parts)
