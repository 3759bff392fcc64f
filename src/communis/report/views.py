"""Other ways to predict: what a method's other views of the same windows would have scored."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from communis.compare import cells, estimate, grouped, known
from communis.finished import Finished
from communis.metrics.selection import Select
from communis.report.html import heading, note, table
from communis.report.words import COUNTS, number, plain

METRICS = ("macro_f1", "accuracy", "nll", "brier", "ece")
MEASURE = "mean@"  # what the name of a measure's mean begins with


def section(runs: Sequence[Finished], select: Select) -> str:
    """Empty where no method has another view or a measure of its own."""
    groups = {name: known(group) for name, group in grouped(runs).items()}
    views = {name: _after([n for n in found if n[:5] != MEASURE]) for name, found in groups.items()}
    measures = _after([n for found in groups.values() for n in found if n[:5] == MEASURE])
    if not any(views.values()) and measures in ([], ["available"]):
        return ""
    average = "averaged over cells, then over seeds" if len(cells(runs)) > 1 else "over seeds"
    parts = [heading("Other ways to predict")]
    if any(views.values()):
        own = "" if select == "last" else ", chosen for each column by itself"
        about = f"Test scores in {COUNTS[select]}{own}"
        parts += [note(f"{about}; mean ± standard deviation {average}."), _views(runs, select)]
    about = "What methods say of the test windows beside their predictions, after the last round"
    return "".join([*parts, note(f"{about}: means {average}."), _measures(runs, measures)])


def _after(names: Sequence[str]) -> list[str]:
    """What follows the @ in names that have one."""
    return list(dict.fromkeys(name.partition("@")[2] for name in names if "@" in name))


def _views(runs: Sequence[Finished], select: Select) -> str:
    lines, places = [], cells(runs)
    shown = [m for m in METRICS if m in known(runs)]
    for name, group in grouped(runs).items():
        there = known(group)
        views = _after([n for n in there if n[:5] != MEASURE])
        for view in ["", *views] if views else []:
            names = [f"{m}@{view}" if view else m for m in shown]
            scores = [
                number(estimate(group, n, select, places)) if n in there else "-" for n in names
            ]
            first = ["", escape(view)] if view else [escape(name), "its prediction"]
            lines.append([*first, *scores])
    return table(["method", "view", *map(plain, shown)], lines, text=(0, 1))


def _measures(runs: Sequence[Finished], measures: Sequence[str]) -> str:
    lines, places = [], cells(runs)
    for name, group in grouped(runs).items():
        found = {n: estimate(group, n, "last", places) for n in known(group) if n[:5] == MEASURE}
        values = [found.get(f"{MEASURE}{measure}") for measure in measures]
        lines.append([escape(name), *(number(v) if v else "-" for v in values)])
    return table(["method", *map(escape, measures)], lines)
