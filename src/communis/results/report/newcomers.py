"""What somebody gets who has no labels yet: the scores of newcomers."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.core.selection import Select
from communis.results.finished import Finished
from communis.results.newcomers import newcomers
from communis.results.report.html import heading, note, table
from communis.results.wording.newcomers import CONTROL, about_newcomers, against
from communis.results.wording.numbers import number, plain


def section(runs: Sequence[Finished], metric: str, select: Select) -> Markup:
    """Empty without newcomers."""
    found = newcomers(runs, metric, select)
    if found is None:
        return EMPTY
    best = found.rows[0].method
    heads = ["method", *map(plain, found.metrics), "weakest\nnewcomer", f"against {best}"]
    lines = []
    for row in found.rows:
        scores = [number(row.scores[name]) if row.common else "-" for name in found.metrics]
        lines.append([row.method, *scores, number(row.weakest), against(row)])
    if found.control:
        scores = [number(found.control[name]) for name in found.metrics]
        lines.append([CONTROL, *scores, "-", ""])
    about = note(about_newcomers(found, metric, select))
    shown = table(heads, lines, text=(0, len(heads) - 1)) if found.rows[0].common else EMPTY
    return heading("What does a newcomer get?") + about + shown
