"""Runs with attackers: who they were, how far they moved the aggregate, and what that did to the
scores of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY, element, stacked
from communis.core.selection import Select
from communis.fleet.attack import SCALES
from communis.results.compare import cells, estimate, grouped
from communis.results.estimate import FEWEST, Estimate
from communis.results.finished import Finished
from communis.results.report.html import heading, note, table
from communis.results.report.round_curves import courses, recorded
from communis.results.report.warnings import listed
from communis.results.report.wording import JOINT, attackers, counts, number, plain, quantity

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
FREE = ("attack.", "cell.", "robust.liars", "robust.trim", "robust.keep")  # go with an attack

Found = dict[tuple[str, str], Estimate]  # by method and cell


def section(
    runs: Sequence[Finished],
    metric: str,
    select: Select,
    shades: Mapping[str, str],
    explained: bool = False,
) -> Markup:
    """Empty where no run has attackers. Methods x cells; of a single cell also curves. explained:
    the page says elsewhere how to read it."""
    there = [run for run in runs if attackers(run)]
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


def changes(runs: Sequence[Finished], metric: str, select: Select) -> Found:
    """What attackers change of the scores of the others, seed by seed; only where there are runs
    without attackers to compare with."""
    found = {}
    for key, group in _attacked(runs).items():
        pairs = [(run, base) for run in group if (base := unattacked(run, runs))]
        if pairs:
            found[key] = Estimate.of(change(*pair, metric, select) for pair in pairs)
    return found


def change(run: Finished, base: Finished, metric: str, select: Select) -> float:
    """The mean over the clients that have a score in both."""
    mine, other = run.by_client(metric, select), base.by_client(metric, select)
    shared = mine.index.intersection(other.index)
    return float((mine[shared] - other[shared]).mean(skipna=False))


def unattacked(run: Finished, runs: Sequence[Finished]) -> Finished | None:
    """The run that differs in nothing but the attack; of several, the one most like it. A setting
    that an older run does not know yet makes no difference."""
    fixed = {key: value for key, value in run.settings.items() if not key.startswith(FREE)}
    found = [
        other
        for other in runs
        if other.seed == run.seed
        and not attackers(other)
        and all(other.settings.get(key, value) == value for key, value in fixed.items())
    ]
    mine = set(run.settings.items())
    return max(found, key=lambda other: len(mine & set(other.settings.items())), default=None)


def distances(runs: Sequence[Finished]) -> Found:
    """How far attackers moved the aggregate, in the rounds in which they attacked."""

    def mean(run: Finished) -> float:
        found = recorded(run, "attack_distance")
        return float(found[found.index >= run.config.get("attack", {}).get("start", 1)].mean())

    return {key: Estimate.of(map(mean, group)) for key, group in _attacked(runs).items()}


def _attacked(runs: Sequence[Finished]) -> dict[tuple[str, str], list[Finished]]:
    """The runs with attackers, by method and cell."""
    return {
        (name, place): group
        for place, some in cells([run for run in runs if attackers(run)]).items()
        for name, group in grouped(some).items()
    }


def _who(runs: Sequence[Finished]) -> Markup:
    """Who attacks and how, by cell and seed."""
    found: dict[tuple[str, str], dict[str, list[str]]] = {}
    for run in [run for some in cells(runs).values() for run in some]:
        by_who = found.setdefault((run.place, _attack(run)), {})
        who = f"{len(attackers(run))} of {len(run.clients)}: {listed(attackers(run))}"
        by_who.setdefault(who, []).append(str(run.seed))
    lines = []
    for (place, how), by_who in found.items():
        named = [f"{who} (seed {', '.join(dict.fromkeys(s))})" for who, s in by_who.items()]
        lines.append([place, how, "\n".join(named if len(named) > 1 else by_who)])
    first = 0 if any(place for place, _ in found) else 1  # without a grid there are no cells
    heads = ["cell", "attack", "clients that attack"][first:]
    return table(heads, [line[first:] for line in lines], text=range(3))


def _attack(run: Finished) -> str:
    """What attackers do, as it was asked for."""
    about = run.config.get("attack", {})
    kind, start, modality = (
        about.get("kind", "attack"),
        about.get("start", 1),
        about.get("modality"),
    )
    scale = about.get("scale") or SCALES.get(kind)
    said = [
        kind.replace("_", " "),
        f"of {modality}" if modality else "",
        f"x {scale:g}" if scale else "",
        f"from round {start} on" if start > 1 else "",
    ]
    return " ".join(filter(None, said))


def _rule(runs: Sequence[Finished]) -> str:
    """What stands in for means: the method's own choice, or that of the run."""
    rules = []
    for run in runs:
        method, rule = run.config["method"], str(run.config.get("robust", {}).get("rule", "mean"))
        own = rule == "mean" and method.get("consensus") == "median"
        none = method.get("pull") == "multi"
        named = "none" if none else "geometric median (its own)" if own else rule.replace("_", " ")
        rules.append(named)
    return ", ".join(dict.fromkeys(rules))


def _methods(
    runs: Sequence[Finished], changed: Found, moved: Found, metric: str, select: Select
) -> Markup:
    """One line per method of a single cell."""
    heads = ["method", "rule", f"test {plain(metric)}\nof the honest"]
    heads += ["change under\nattack"] * bool(changed) + ["aggregate\nmoved by"]
    lines = []
    for (name, place), group in _attacked(runs).items():
        line = [name, _rule(group), number(estimate(group, metric, select))]
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
            *(name, _rule(group)),
            *(show(found[name, p]) if (name, p) in found else "-" for p in places),
        ]
        for name, group in grouped(runs).items()
    ]
    return table(heads, lines, text=(0, 1))


def signed(change: Estimate) -> str:
    """A change in words, with ~ where it may be none, and with ? where seeds are too few to say."""
    text = f"+{number(change)}" if change.mean >= 0 else number(change)
    if math.isfinite(change.mean) and change.seeds < FEWEST:
        return f"{text}{JOINT}?"
    return f"{text}{JOINT}~" if abs(change.mean) <= change.half_width else text
