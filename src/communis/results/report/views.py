"""The section on other predictions of a method for the same windows, and on what it measures."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.core.selection import Select
from communis.results.compare import runs_by_cell
from communis.results.estimate import Estimate
from communis.results.finished import Finished
from communis.results.predictions import SEEN, Noted, measures, views
from communis.results.report.html import heading, note, table
from communis.results.wording.numbers import number, plain
from communis.results.wording.scores import counts


def section(runs: Sequence[Finished], metric: str, select: Select) -> Markup:
    """Empty where no method has another view or a measure of its own. Views of the common model on
    everybody's windows have a section of their own (modalities.py)."""
    average = (
        "averaged over cells, then over seeds" if len(runs_by_cell(runs)) > 1 else "over seeds"
    )
    when = counts(select, metric)
    parts = []
    if other := views(runs, metric, select):
        about = f"Test scores in {when}; mean ± standard deviation {average}."
        parts += [heading("Other ways to predict"), note(about), _views(other)]
    if measured := measures(runs, metric, select):
        about = (
            "What methods say of the test windows beside their predictions; "
            f"mean ± standard deviation {average}, in {when}."
        )
        parts += [heading("What methods measure"), note(about), _measures(measured)]
    return EMPTY.join(parts)


def _views(rows: Sequence[Noted]) -> Markup:
    lines = []
    for row in rows:
        called = "its prediction, where a sensor saw the window" if row.view == SEEN else row.view
        first = ["", called] if row.view else [row.method, "its prediction"]
        lines.append([*first, *map(_shown, row.values.values())])
    heads = ["method", "view", *map(plain, rows[0].values)]
    return table(heads, lines, text=(0, 1))


def _measures(rows: Sequence[Noted]) -> Markup:
    lines = [[row.method, *map(_shown, row.values.values())] for row in rows]
    return table(["method", *rows[0].values], lines)


def _shown(estimate: Estimate | None) -> str:
    return number(estimate) if estimate else "-"
