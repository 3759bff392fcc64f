"""What a method's other views of the same windows would have scored, and what it measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from communis.core.selection import Select
from communis.results.compare import estimate, known, runs_by_cell, runs_by_method
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.modalities import of_common_model

METRICS = ("macro_f1", "accuracy", "nll", "brier", "ece")
SEEN = "seen"  # no other prediction: the same one, over the windows that some sensor saw
MEASURE = "mean@"  # what the name of a measure's mean begins with


@dataclass(frozen=True)
class Noted:
    """Estimates of one method by metric or by measure; None where the method has none."""

    method: str
    view: str  # "" for its prediction, and for measures
    values: dict[str, Estimate | None]


def after(names: Sequence[str]) -> list[str]:
    """What follows the @ in names that have one."""
    views = dict.fromkeys(name.partition("@")[2] for name in names if "@" in name)
    return [view for view in views if not of_common_model(view)]


def views_of(names: Sequence[str]) -> list[str]:
    """The other views among the names of scores."""
    return after([name for name in names if not name.startswith(MEASURE)])


def measures_of(names: Sequence[str]) -> list[str]:
    """The measures among the names of scores."""
    return after([name for name in names if name.startswith(MEASURE)])


def views(runs: Sequence[Finished], metric: str, select: Select) -> list[Noted]:
    """For every method with other views, its prediction and then every view, by the METRICS that
    all methods have; means over cells seed by seed, then over seeds. Empty where no method predicts
    in another way than it does."""
    groups = runs_by_method(runs)
    by_method = {name: views_of(known(group)) for name, group in groups.items()}
    if not any(view != SEEN for other in by_method.values() for view in other):
        return []
    shown = [name for name in METRICS if name in known(runs)]
    rows = []
    for method, other in by_method.items():
        for view in ["", *other] if other else []:
            names = {name: f"{name}@{view}" if view else name for name in shown}
            values = _values(runs, groups[method], names, metric, select)
            rows.append(Noted(method, view, values))
    return rows


def measures(runs: Sequence[Finished], metric: str, select: Select) -> list[Noted]:
    """What methods say of the test windows beside their predictions, for every method by measure.
    Empty where nothing but the number of available sensors is measured."""
    groups = runs_by_method(runs)
    names = [name for group in groups.values() for name in known(group)]
    measured = measures_of(names)
    if all(measure.startswith("available") for measure in measured):
        return []
    of_scores = {measure: f"{MEASURE}{measure}" for measure in measured}
    return [
        Noted(method, "", _values(runs, group, of_scores, metric, select))
        for method, group in groups.items()
    ]


def _values(
    runs: Sequence[Finished],
    group: Sequence[Finished],
    names: dict[str, str],
    metric: str,
    select: Select,
) -> dict[str, Estimate | None]:
    """The estimates of the scores `names`, by what each is shown as."""
    places = runs_by_cell(runs)
    there = known(group)
    values: dict[str, Estimate | None] = {}
    for shown, name in names.items():
        exists = name in there
        values[shown] = estimate(group, name, select, places, by=metric) if exists else None
    return values
