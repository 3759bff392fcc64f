"""The verdicts on privacy in lines, and the methods and cells that share them."""

from __future__ import annotations

from collections.abc import Sequence

from communis.results.finished import Finished
from communis.results.privacy import Point, points

MORE = "communis privacy verdict RUN"


def lines(runs: Sequence[Finished]) -> list[str]:
    """The verdicts for the terminal, one line each; methods that share one, together."""
    judged = alike(points(runs))
    named = {
        text: f"privacy: {who}" if len(judged) > 1 else "privacy" for text, who in judged.items()
    }
    printed = [f"{who}: {text}" for text, who in named.items()]
    return [*printed[:-1], f"{printed[-1]} ({MORE})"] if printed else []


def alike(judged: Sequence[Point]) -> dict[str, str]:
    """Every verdict, with the names of the points that have it."""
    by_line: dict[str, list[Point]] = {}
    for point in judged:
        by_line.setdefault(point.verdict.line, []).append(point)
    return {text: who(sharing, judged) for text, sharing in by_line.items()}


def who(points: Sequence[Point], every: Sequence[Point]) -> str:
    """A name for some of all points: cells, if the points are all methods of some cells; else
    methods, with their cells where these are not all cells of the method."""
    places = dict.fromkeys(point.place for point in points)
    elsewhere = [point for point in every if point.place not in places]
    if elsewhere and len(points) + len(elsewhere) == len(every):
        return "; ".join(places)
    names = []
    for method in dict.fromkeys(point.method for point in points):
        own = [point.place for point in points if point.method == method]
        in_all = len(own) == sum(point.method == method for point in every)
        names.append(method if in_all else f"{method} ({'; '.join(own)})")
    return ", ".join(names)
