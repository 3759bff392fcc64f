"""Runs with attackers: who they were, how far they moved the aggregate, and what that did to the
scores of the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY, element, stacked
from communis.core.selection import Select
from communis.results.attack import (
    Found,
    attacked,
    changes,
    described,
    distances,
    rule,
)
from communis.results.compare import cells, estimate, grouped
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.report.html import heading, note, table
from communis.results.report.round_curves import courses
from communis.results.wording.numbers import number, plain, quantity, signed
from communis.results.wording.scores import counts
from communis.results.wording.warnings import listed

ABOUT = (
    "Attackers take part in every round and are not scored: every score, here and elsewhere, is of "
    "honest clients only."
)
CHANGE = (
    "Who attacks decides who is scored, so scores with and without attackers are means over "
    "different clients. The change is therefore taken client by client, over those that are honest "
    "in both, against the run of the same seed and settings without attackers; mean ± standard "
    "deviation over seeds. ~ marks a change whose 95 % interval holds zero, ? one of too few seeds."
)
DISTANCE = (
    "How far attackers moved the aggregate: its distance from what the honest clients alone would "
    "have made of it, over the length of the latter; mean over rounds, then over seeds. With the "
    "mean even harmless clients move it a little. An aggregate is a whole model for one method and "
    "a few class vectors for another: compare rules by it, not methods. Mind the scale of its axis."
)


def section(
    runs: Sequence[Finished],
    metric: str,
    select: Select,
    shades: Mapping[str, str],
    explained: bool = False,
) -> Markup:
    """Empty where no run has attackers. Methods x cells; of a single cell also curves. explained:
    the page says elsewhere how to read it."""
    there = [run for run in runs if run.attackers]
    if not there:
        return EMPTY
    changed, moved = changes(runs, metric, select), distances(there)
    parts = [heading("Under attack")]
    if not explained:
        parts += [note(ABOUT), _who(there)]
    if len(cells(runs)) == 1:
        parts.append(_methods(there, changed, moved, metric, select))
        parts += [] if explained else [note(CHANGE) if changed else EMPTY, note(DISTANCE)]
        title = "How far attackers moved the aggregate"
        return stacked(*parts, courses(there, "attack_distance", title, shades))
    if changed:
        title = f"What attackers change of the honest clients' test {plain(metric)}"
        parts.append(element("h3", title) + _grid(there, changed, signed))
        parts.append(note(f"{CHANGE} Scores are of {counts(select, metric)}."))
    parts.append(element("h3", "How far they move the aggregate"))
    return stacked(*parts, _grid(there, moved, quantity), note(DISTANCE))


def _who(runs: Sequence[Finished]) -> Markup:
    """Who attacks and how, by cell and seed."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for run in [run for some in cells(runs).values() for run in some]:
        by_who = found.setdefault((run.place, described(run)), {})
        who = f"{len(run.attackers)} of {len(run.clients)}: {listed(run.attackers)}"
        by_who.setdefault(who, []).append(str(run.seed))
    lines = []
    for (place, how), by_who in found.items():
        named = [f"{who} (seed {', '.join(dict.fromkeys(s))})" for who, s in by_who.items()]
        lines.append([place, how, "\n".join(named if len(named) > 1 else by_who)])
    first = 0 if any(place for place, _ in found) else 1  # without a grid there are no cells
    heads = ["cell", "attack", "clients that attack"][first:]
    return table(heads, [line[first:] for line in lines], text=range(3))


def _methods(
    runs: Sequence[Finished], changed: Found, moved: Found, metric: str, select: Select
) -> Markup:
    """One line per method of a single cell."""
    heads = ["method", "rule", f"test {plain(metric)}\nof the honest"]
    heads += ["change under\nattack"] * bool(changed) + ["aggregate\nmoved by"]
    lines = []
    for (name, place), group in attacked(runs).items():
        line = [name, rule(group), number(estimate(group, metric, select))]
        if changed:
            found = changed.get((name, place))
            line.append(signed(found) if found else "-")
        lines.append([*line, quantity(moved[name, place])])
    return table(heads, lines, text=(0, 1))


def _grid(runs: Sequence[Finished], found: Found, show: Callable[[Estimate], str]) -> Markup:
    """Methods x cells with attackers."""
    places = list(cells(runs))
    heads = ["method", "rule", *(place.replace(", ", "\n") for place in places)]
    lines = [
        [
            *(name, rule(group)),
            *(show(found[name, p]) if (name, p) in found else "-" for p in places),
        ]
        for name, group in grouped(runs).items()
    ]
    return table(heads, lines, text=(0, 1))
