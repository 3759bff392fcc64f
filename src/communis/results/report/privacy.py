"""What left the clients and what may be promised of it, beside what it costs in scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pandas as pd
from markupsafe import Markup

from communis.core.markup import EMPTY, Content, element, stacked
from communis.core.selection import Select
from communis.results.account import epsilon_of
from communis.results.compare import cells, estimate, grouped
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.report.attack import signed
from communis.results.report.html import charts, details, heading, legend, note, table
from communis.results.report.round_curves import by_round
from communis.results.report.svg import colour
from communis.results.report.wording import counts, number, plain
from communis.results.verdict import Verdict, course, verdict, worst

FREE = ("privacy.", "cell.")  # what may differ between a run and the one without privacy
WRAPPED = "white-space:normal;min-width:18em;max-width:42em"
MORE = "communis privacy verdict RUN"
ABOUT = (
    "DP: differentially private, for a client with all of its windows. Where seeds differ, the "
    "weakest verdict is shown."
)
PRICE = (
    "What privacy changes is the difference to the run of the same seed and settings without it, "
    "mean ± standard deviation over seeds; ~ marks one whose 95 % interval holds zero, ? one of "
    "too few seeds."
)


@dataclass(frozen=True)
class Point:
    """A method in a cell."""

    runs: Sequence[Finished]  # its seeds
    verdict: Verdict

    @property
    def method(self) -> str:
        return self.runs[0].method

    @property
    def place(self) -> str:
        return self.runs[0].place

    @property
    def name(self) -> str:
        return ", ".join(filter(None, [self.method, self.place]))


def points(runs: Sequence[Finished]) -> list[Point]:
    """In the order of the experiment's file, cell by cell."""
    return [
        Point(group, worst([verdict(run) for run in group]))
        for some in cells(runs).values()
        for group in grouped(some).values()
    ]


def section(runs: Sequence[Finished], metric: str, select: Select) -> Markup:
    """All cells together. Short where nobody asked for privacy."""
    found = points(runs)
    parts = [heading("What left the clients, and is it private?")]
    if not any(_asked(point) for point in found):
        body = [[who, text] for text, who in _alike(found).items()]
        parts.append(table(["method", "verdict"], body, text=(0, 1)))
        return stacked(*parts, *_folded(_firsts(found)))
    prices = {point.name: paid for point in found if (paid := price(point, runs, metric, select))}
    parts.append(_utility(found, prices, metric, select))
    parts.append(note(f"{ABOUT} Scores are of {counts(select, metric)}. {PRICE * bool(prices)}"))
    parts += [_course(found), *_folded(found)]
    conditions = dict.fromkeys(text for point in found for text in point.verdict.conditions)
    if conditions:
        parts.append(element("h3", "Conditions of every promise"))
        parts.append(_list(list(conditions)))
    return stacked(*parts)


def lines(runs: Sequence[Finished]) -> list[str]:
    """The verdicts for the terminal, one line each; methods that share one, together."""
    found = _alike(points(runs))
    named = {
        text: f"privacy: {who}" if len(found) > 1 else "privacy" for text, who in found.items()
    }
    said = [f"{who}: {text}" for text, who in named.items()]
    return [*said[:-1], f"{said[-1]} ({MORE})"] if said else []


def as_json(run: Finished, spent: bool = False) -> dict[str, Any]:
    """For programs; spent: with what every client had spent after each of its rounds."""
    found = verdict(run)
    about = {"method": run.method, "cell": run.cell, "seed": run.seed, **asdict(found)}
    about["per_client"] = [
        {
            "client": one.client,
            "rounds": len(one.course),
            "epsilon": one.epsilon,
            "epsilon_by_round": {r: epsilon_of(mu, found.delta) for r, mu in one.course.items()},
        }
        for one in found.per_client
        if spent
    ]
    return about


def price(point: Point, runs: Sequence[Finished], metric: str, select: Select) -> Estimate | None:
    """What privacy changes of the score, seed by seed; None where there is nothing to compare."""
    if not _asked(point):
        return None
    pairs = [(run, base) for run in point.runs if (base := unprotected(run, runs))]
    change = (run.final(metric, select) - base.final(metric, select) for run, base in pairs)
    return Estimate.of(change) if pairs else None


def unprotected(run: Finished, runs: Sequence[Finished]) -> Finished | None:
    """The run that differs in nothing but privacy, and has none."""
    fixed = {key: value for key, value in run.settings.items() if not key.startswith(FREE)}
    found = [
        other
        for other in runs
        if other.seed == run.seed
        and other.config.get("privacy", {}).get("mode", "none") == "none"
        and all(other.settings.get(key, value) == value for key, value in fixed.items())
    ]
    return found[0] if found else None


def _asked(point: Point) -> bool:
    return point.verdict.mode not in ("none", "unknown")


def _utility(
    found: Sequence[Point], prices: Mapping[str, Estimate], metric: str, select: Select
) -> Markup:
    """Scores with the verdict beside them."""
    grid = any(point.place for point in found)
    heads = ["method", *["cell"] * grid, "mode", "verdict", f"test {plain(metric)}"]
    heads += ["what privacy\nchanges"] * bool(prices) + ["why not"]
    body = []
    for point in found:
        v, paid = point.verdict, prices.get(point.name)
        line: list[Content] = [point.method, *[point.place] * grid, v.mode, v.brief]
        line += [number(estimate(point.runs, metric, select))]
        line += [signed(paid) if paid else "-"] * bool(prices)
        body.append([*line, element("div", "; ".join(v.reasons), style=WRAPPED)])
    return table(heads, body, text=(*range(3 + grid), len(heads) - 1))


def _alike(found: Sequence[Point]) -> dict[str, str]:
    """Every verdict that there is, and who has it."""
    by_line: dict[str, list[Point]] = {}
    for point in found:
        by_line.setdefault(point.verdict.line, []).append(point)
    return {text: _who(some, found) for text, some in by_line.items()}


def _who(some: Sequence[Point], every: Sequence[Point]) -> str:
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


def _firsts(found: Sequence[Point]) -> list[Point]:
    """One of every method."""
    return list({point.method: point for point in reversed(found)}.values())[::-1]


def _folded(found: Sequence[Point]) -> list[Markup]:
    """Everything that belongs to each verdict, when it is asked for."""
    parts = []
    for point in found:
        v = point.verdict
        first, *facts = v.facts.items()
        shown = [element("p", f"{v.line}."), table(first, facts, text=(0, 1))]
        shown += [element("p", "Why:") + _list(v.reasons)] if len(v.reasons) > 1 else []
        parts.append(details(f"{point.name}: {v.brief}", *shown, _left(v)))
    return parts


def _left(v: Verdict) -> Markup:
    """What left a client, part by part."""
    heads = ["field of the message", "part", "tensors", "numbers", "covered"]
    body = [
        [
            *(part.field, part.part, str(part.tensors), f"{part.numbers:,}"),
            "yes" if part.covered else f"no: {part.why}",
        ]
        for part in v.table
    ]
    return table(heads, body, text=(0, 1, 4)) if body else note("Nothing was sent.")


def _course(found: Sequence[Point]) -> Markup:
    """The largest epsilon over rounds; empty where nothing is promised. Methods of a cell often
    spend the same: then they share a line."""
    alike: dict[Any, list[Point]] = {}
    for point in found:
        courses = tuple(tuple(course(run).items()) for run in point.runs)
        if all(courses):
            alike.setdefault(courses, []).append(point)
    by_name = {
        _who(some, found): [pd.Series(dict(one), dtype=float) for one in courses]
        for courses, some in alike.items()
    }
    if not by_name:
        return EMPTY
    shades = {name: colour(i) for i, name in enumerate(by_name)}
    chart = by_round(by_name, shades, "Largest epsilon of a client by round", "epsilon")
    return legend(shades) + charts(chart)


def _list(texts: Sequence[str]) -> Markup:
    return element("ul", *(element("li", text) for text in texts))
