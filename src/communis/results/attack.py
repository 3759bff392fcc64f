"""Runs with attackers: how far they moved the aggregate, and what that did to the scores of the
others."""

from __future__ import annotations

from collections.abc import Sequence

from communis.core.selection import Select
from communis.fleet.attack import SCALES
from communis.results.compare import cells, grouped
from communis.results.curves import recorded
from communis.results.estimate import Estimate
from communis.results.finished import Finished

FREE = ("attack.", "cell.", "robust.liars", "robust.trim", "robust.keep")  # go with an attack

Found = dict[tuple[str, str], Estimate]  # by method and cell


def changes(runs: Sequence[Finished], metric: str, select: Select) -> Found:
    """What attackers change of the scores of the others, seed by seed; only where there are runs
    without attackers to compare with."""
    found = {}
    for key, group in attacked(runs).items():
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
        and not other.attackers
        and all(other.settings.get(key, value) == value for key, value in fixed.items())
    ]
    mine = set(run.settings.items())
    return max(found, key=lambda other: len(mine & set(other.settings.items())), default=None)


def distances(runs: Sequence[Finished]) -> Found:
    """How far attackers moved the aggregate, in the rounds in which they attacked."""

    def mean(run: Finished) -> float:
        found = recorded(run, "attack_distance")
        return float(found[found.index >= run.config.get("attack", {}).get("start", 1)].mean())

    return {key: Estimate.of(map(mean, group)) for key, group in attacked(runs).items()}


def attacked(runs: Sequence[Finished]) -> dict[tuple[str, str], list[Finished]]:
    """The runs with attackers, by method and cell."""
    return {
        (name, place): group
        for place, some in cells([run for run in runs if run.attackers]).items()
        for name, group in grouped(some).items()
    }


def described(run: Finished) -> str:
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


def rule(runs: Sequence[Finished]) -> str:
    """What stands in for means: the method's own choice, or that of the run."""
    rules = []
    for run in runs:
        method, rule = run.config["method"], str(run.config.get("robust", {}).get("rule", "mean"))
        own = rule == "mean" and method.get("consensus") == "median"
        none = method.get("pull") == "multi"
        named = "none" if none else "geometric median (its own)" if own else rule.replace("_", " ")
        rules.append(named)
    return ", ".join(dict.fromkeys(rules))
