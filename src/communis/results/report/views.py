"""What a method's other views of the same windows would have scored, and what it measures."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.core.selection import Select
from communis.results.compare import cells, estimate, grouped, known
from communis.results.finished import Finished
from communis.results.predictions import MEASURE, METRICS, SEEN, after
from communis.results.report.html import heading, note, table
from communis.results.wording.numbers import number, plain
from communis.results.wording.scores import counts


def section(runs: Sequence[Finished], metric: str, select: Select) -> Markup:
    """Empty where no method has another view or a measure of its own. Views of the common model on
    everybody's windows have a section of their own (modalities.py)."""
    groups = {name: known(group) for name, group in grouped(runs).items()}
    views = {name: after([n for n in found if n[:5] != MEASURE]) for name, found in groups.items()}
    measures = after([n for found in groups.values() for n in found if n[:5] == MEASURE])
    average = "averaged over cells, then over seeds" if len(cells(runs)) > 1 else "over seeds"
    when = counts(select, metric)
    parts = []
    if any(view != SEEN for found in views.values() for view in found):
        about = f"Test scores in {when}; mean ± standard deviation {average}."
        parts += [heading("Other ways to predict"), note(about), _views(runs, metric, select)]
    if any(not measure.startswith("available") for measure in measures):
        about = (
            "What methods say of the test windows beside their predictions; "
            f"mean ± standard deviation {average}, in {when}."
        )
        parts += [heading("What methods measure"), note(about)]
        parts += [_measures(runs, measures, metric, select)]
    return EMPTY.join(parts)


def _views(runs: Sequence[Finished], metric: str, select: Select) -> Markup:
    lines, places = [], cells(runs)
    shown = [m for m in METRICS if m in known(runs)]
    for name, group in grouped(runs).items():
        there = known(group)
        views = after([n for n in there if n[:5] != MEASURE])
        for view in ["", *views] if views else []:
            names = [f"{m}@{view}" if view else m for m in shown]
            scores = [
                number(estimate(group, n, select, places, by=metric)) if n in there else "-"
                for n in names
            ]
            called = "its prediction, where a sensor saw the window" if view == SEEN else view
            first = ["", called] if view else [name, "its prediction"]
            lines.append([*first, *scores])
    return table(["method", "view", *map(plain, shown)], lines, text=(0, 1))


def _measures(
    runs: Sequence[Finished], measures: Sequence[str], metric: str, select: Select
) -> Markup:
    lines, places = [], cells(runs)
    for name, group in grouped(runs).items():
        there = known(group)
        values = [
            number(estimate(group, n, select, places, by=metric)) if n in there else "-"
            for n in (f"{MEASURE}{measure}" for measure in measures)
        ]
        lines.append([name, *values])
    return table(["method", *measures], lines)
