"""The verdicts on privacy in lines, and who shares them."""

from __future__ import annotations

from collections.abc import Sequence

from communis.results.finished import Finished
from communis.results.privacy import Point, points

MORE = "communis privacy verdict RUN"


def lines(runs: Sequence[Finished]) -> list[str]:
    """The verdicts for the terminal, one line each; methods that share one, together."""
    found = alike(points(runs))
    named = {
        text: f"privacy: {who}" if len(found) > 1 else "privacy" for text, who in found.items()
    }
    said = [f"{who}: {text}" for text, who in named.items()]
    return [*said[:-1], f"{said[-1]} ({MORE})"] if said else []


def alike(found: Sequence[Point]) -> dict[str, str]:
    """Every verdict that there is, and who has it."""
    by_line: dict[str, list[Point]] = {}
    for point in found:
        by_line.setdefault(point.verdict.line, []).append(point)
    return {text: who(some, found) for text, some in by_line.items()}


def who(some: Sequence[Point], every: Sequence[Point]) -> str:
    """Cells, if it is all methods in some of them; else methods, with the cells that are meant."""
    places = dict.fromkeys(point.place for point in some)
    elsewhere = [point for point in every if point.place not in places]
    if elsewhere and len(some) + len(elsewhere) == len(every):
        return "; ".join(places)
    names = []
    for method in dict.fromkeys(point.method for point in some):
        mine = [point.place for point in some if point.method == method]
        all_of_it = len(mine) == sum(point.method == method for point in every)
        names.append(method if all_of_it else f"{method} ({'; '.join(mine)})")
    return ", ".join(names)
