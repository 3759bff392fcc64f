"""Runs with attackers: how far they moved the aggregate, and what that did to the scores of the
others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from communis.core.selection import Select
from communis.fleet.attack import SCALES
from communis.results.compare import estimate, runs_by_cell, runs_by_method
from communis.results.curves import recorded
from communis.results.estimate import Estimate
from communis.results.finished import Finished

FREE = ("attack.", "cell.", "robust.liars", "robust.trim", "robust.keep")  # go with an attack

Estimates = dict[tuple[str, str], Estimate]  # by method and cell


@dataclass(frozen=True)
class Attacked:
    """The runs of one method in one cell with attackers."""

    method: str
    place: str
    rule: str  # see `rule`
    score: Estimate  # of the honest clients
    change: Estimate | None  # see `changes`; None where there is nothing to compare with
    moved: Estimate  # see `distances`


def attacks(runs: Sequence[Finished], metric: str, select: Select) -> list[Attacked]:
    """All methods and cells with attackers."""
    changed, moved = changes(runs, metric, select), distances(runs)
    return [
        Attacked(
            method,
            place,
            rule(group),
            estimate(group, metric, select),
            changed.get((method, place)),
            moved[method, place],
        )
        for (method, place), group in attacked(runs).items()
    ]


def changes(runs: Sequence[Finished], metric: str, select: Select) -> Estimates:
    """What attackers change of the scores of the others, seed by seed; only where there are runs
    without attackers to compare with."""
    estimates = {}
    for key, group in attacked(runs).items():
        pairs = _pairs(group, runs)
        if pairs:
            estimates[key] = Estimate.of(change(run, base, metric, select) for run, base in pairs)
    return estimates


def _pairs(group: Sequence[Finished], runs: Sequence[Finished]) -> list[tuple[Finished, Finished]]:
    """Every run with the one that has no attackers, if there is one."""
    pairs = []
    for run in group:
        base = unattacked(run, runs)
        if base is not None:
            pairs.append((run, base))
    return pairs


def change(run: Finished, base: Finished, metric: str, select: Select) -> float:
    """The mean over the clients that have a score in both."""
    mine, other = run.by_client(metric, select), base.by_client(metric, select)
    shared = mine.index.intersection(other.index)
    return float((mine[shared] - other[shared]).mean(skipna=False))


def unattacked(run: Finished, runs: Sequence[Finished]) -> Finished | None:
    """The run that differs in nothing but the attack; of several, the one most like it. A setting
    that an older run does not know yet makes no difference."""
    fixed = {key: value for key, value in run.settings.items() if not key.startswith(FREE)}
    candidates = [
        other
        for other in runs
        if other.seed == run.seed
        and not other.attackers
        and all(other.settings.get(key, value) == value for key, value in fixed.items())
    ]
    mine = set(run.settings.items())
    return max(candidates, key=lambda other: len(mine & set(other.settings.items())), default=None)


def distances(runs: Sequence[Finished]) -> Estimates:
    """How far attackers moved the aggregate, in the rounds in which they attacked."""
    return {
        key: Estimate.of(distance(run) for run in group) for key, group in attacked(runs).items()
    }


def distance(run: Finished) -> float:
    """How far attackers moved the aggregate of a run: the mean over the rounds of the attack."""
    by_round = recorded(run, "attack_distance")
    start = run.config.get("attack", {}).get("start", 1)
    return float(by_round[by_round.index >= start].mean())


def attacked(runs: Sequence[Finished]) -> dict[tuple[str, str], list[Finished]]:
    """The runs with attackers, by method and cell."""
    groups = {}
    for place, inside in runs_by_cell([run for run in runs if run.attackers]).items():
        for name, group in runs_by_method(inside).items():
            groups[name, place] = group
    return groups


def described(run: Finished) -> str:
    """What attackers do, as it was asked for."""
    attack = run.config.get("attack", {})
    kind = attack.get("kind", "attack")
    modality = attack.get("modality")
    scale = attack.get("scale") or SCALES.get(kind)
    start = attack.get("start", 1)
    words = [
        kind.replace("_", " "),
        f"of {modality}" if modality else "",
        f"x {scale:g}" if scale else "",
        f"from round {start} on" if start > 1 else "",
    ]
    return " ".join(filter(None, words))


def rule(runs: Sequence[Finished]) -> str:
    """What stands in for means: the method's own choice, or that of the run."""
    return ", ".join(dict.fromkeys(_rule(run) for run in runs))


def _rule(run: Finished) -> str:
    method = run.config["method"]
    asked = str(run.config.get("robust", {}).get("rule", "mean"))
    if method.get("pull") == "multi":
        return "none"
    if asked == "mean" and method.get("consensus") == "median":
        return "geometric median (its own)"
    return asked.replace("_", " ")
