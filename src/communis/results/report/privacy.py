"""What left the clients, the verdicts on privacy, and what privacy changes of the scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY, Content, element, stacked
from communis.core.selection import Select
from communis.results.compare import estimate
from communis.results.curves import by_round
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.privacy import Point, asked, epsilon_curves, points, prices
from communis.results.report import round_curves
from communis.results.report.html import charts, details, heading, legend, note, table
from communis.results.report.svg import colour
from communis.results.verdict import Verdict
from communis.results.wording.numbers import number, plain, signed
from communis.results.wording.privacy import alike, who
from communis.results.wording.scores import counts

WRAPPED = "white-space:normal;min-width:18em;max-width:42em"
ABOUT = (
    "DP: differentially private, for a client with all of its windows. Where seeds differ, the "
    "weakest verdict is shown."
)
PRICE = (
    "What privacy changes is the difference to the run of the same seed and settings without it, "
    "mean ± standard deviation over seeds; ~ marks one whose 95 % interval holds zero, ? one of "
    "too few seeds."
)


def section(runs: Sequence[Finished], metric: str, select: Select) -> Markup:
    """All cells together. A short table where no run has privacy."""
    judged = points(runs)
    parts = [heading("What left the clients, and is it private?")]
    if not any(asked(point) for point in judged):
        body = [[who, text] for text, who in alike(judged).items()]
        parts.append(table(["method", "verdict"], body, text=(0, 1)))
        return stacked(*parts, *_folded(_firsts(judged)))
    paid = prices(judged, runs, metric, select)
    parts.append(_utility(judged, paid, metric, select))
    parts.append(note(f"{ABOUT} Scores are of {counts(select, metric)}. {PRICE * bool(paid)}"))
    parts += [_course(judged), *_folded(judged)]
    conditions = dict.fromkeys(text for point in judged for text in point.verdict.conditions)
    if conditions:
        parts.append(element("h3", "Conditions of every promise"))
        parts.append(_list(list(conditions)))
    return stacked(*parts)


def _utility(
    judged: Sequence[Point], prices: Mapping[str, Estimate], metric: str, select: Select
) -> Markup:
    """Scores with the verdict beside them."""
    grid = any(point.place for point in judged)
    heads = ["method", "mode", "verdict", f"test {plain(metric)}", "why not"]
    if prices:
        heads.insert(-1, "what privacy\nchanges")
    if grid:
        heads.insert(1, "cell")
    body = []
    for point in judged:
        v = point.verdict
        score = number(estimate(point.runs, metric, select))
        reasons = element("div", "; ".join(v.reasons), style=WRAPPED)
        line: list[Content] = [point.method, v.mode, v.brief, score, reasons]
        if prices:
            paid = prices.get(point.name)
            line.insert(-1, signed(paid) if paid else "-")
        if grid:
            line.insert(1, point.place)
        body.append(line)
    return table(heads, body, text=(*range(3 + grid), len(heads) - 1))


def _firsts(judged: Sequence[Point]) -> list[Point]:
    """One of every method."""
    return list({point.method: point for point in reversed(judged)}.values())[::-1]


def _folded(judged: Sequence[Point]) -> list[Markup]:
    """Everything that belongs to each verdict, when it is asked for."""
    parts = []
    for point in judged:
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


def _course(judged: Sequence[Point]) -> Markup:
    """The largest epsilon over rounds; empty where nothing is promised. Methods of a cell often
    spend the same: then they share a line."""
    series = {who(points, judged): by_seed for points, by_seed in epsilon_curves(judged)}
    if not series:
        return EMPTY
    colours = {name: colour(i) for i, name in enumerate(series)}
    title = "Largest epsilon of a client by round"
    chart = round_curves.by_round(by_round(series), colours, title, "epsilon")
    return legend(colours) + charts(chart)


def _list(texts: Sequence[str]) -> Markup:
    return element("ul", *(element("li", text) for text in texts))
