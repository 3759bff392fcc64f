"""The section on attackers: who they are, how far they move the aggregate, and what they change in
the scores of the honest clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY, element, stacked
from communis.core.selection import Select
from communis.results.attack import (
    Attacked,
    Estimates,
    attacks,
    changes,
    described,
    distances,
    rule,
)
from communis.results.compare import runs_by_cell, runs_by_method
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.report.html import heading, note, table
from communis.results.report.round_curves import distance_chart
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
    """Returns the section: methods x cells, and curves if there is one cell. Empty if no run has
    attackers. explained: the page has the explanation already."""
    there = [run for run in runs if run.attackers]
    if not there:
        return EMPTY
    parts = [heading("Under attack")]
    if not explained:
        parts += [note(ABOUT), _who(there)]
    if len(runs_by_cell(runs)) == 1:
        rows = attacks(runs, metric, select)
        any_change = any(row.change for row in rows)
        parts.append(_methods(rows, metric, any_change))
        parts += [] if explained else [note(CHANGE) if any_change else EMPTY, note(DISTANCE)]
        title = "How far attackers moved the aggregate"
        return stacked(*parts, distance_chart(there, "attack_distance", title, shades))
    changed, moved = changes(runs, metric, select), distances(there)
    if changed:
        title = f"What attackers change of the honest clients' test {plain(metric)}"
        parts.append(element("h3", title) + _grid(there, changed, signed))
        parts.append(note(f"{CHANGE} Scores are of {counts(select, metric)}."))
    parts.append(element("h3", "How far they move the aggregate"))
    return stacked(*parts, _grid(there, moved, quantity), note(DISTANCE))


def _who(runs: Sequence[Finished]) -> Markup:
    """The attackers and their attack, by cell and seed."""
    attacks: dict[tuple[str, str], dict[str, list[str]]] = {}
    for inside in runs_by_cell(runs).values():
        for run in inside:
            seeds_by_attackers = attacks.setdefault((run.place, described(run)), {})
            attackers = f"{len(run.attackers)} of {len(run.clients)}: {listed(run.attackers)}"
            seeds_by_attackers.setdefault(attackers, []).append(str(run.seed))
    lines = []
    for (place, how), seeds_by_attackers in attacks.items():
        shown = list(seeds_by_attackers)
        if len(shown) > 1:
            shown = [
                f"{attackers} (seed {', '.join(dict.fromkeys(seeds))})"
                for attackers, seeds in seeds_by_attackers.items()
            ]
        lines.append([place, how, "\n".join(shown)])
    first = 0 if any(place for place, _ in attacks) else 1  # without a grid there are no cells
    heads = ["cell", "attack", "clients that attack"][first:]
    return table(heads, [line[first:] for line in lines], text=range(3))


def _methods(rows: Sequence[Attacked], metric: str, changed: bool) -> Markup:
    """One line per method of a single cell; changed: whether any has a run without attackers."""
    heads = ["method", "rule", f"test {plain(metric)}\nof the honest"]
    heads += ["change under\nattack"] * changed + ["aggregate\nmoved by"]
    lines = []
    for row in rows:
        line = [row.method, row.rule, number(row.score)]
        if changed:
            line.append(signed(row.change) if row.change else "-")
        lines.append([*line, quantity(row.moved)])
    return table(heads, lines, text=(0, 1))


def _grid(
    runs: Sequence[Finished], estimates: Estimates, show: Callable[[Estimate], str]
) -> Markup:
    """Methods x cells with attackers."""
    places = list(runs_by_cell(runs))
    heads = ["method", "rule", *(place.replace(", ", "\n") for place in places)]
    lines = [
        [
            *(name, rule(group)),
            *(show(estimates[name, p]) if (name, p) in estimates else "-" for p in places),
        ]
        for name, group in runs_by_method(runs).items()
    ]
    return table(heads, lines, text=(0, 1))
