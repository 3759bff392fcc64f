"""Traffic until a score is reached."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY, stacked
from communis.core.selection import Select
from communis.results.finished import Finished
from communis.results.report.html import heading, note, table
from communis.results.traffic import traffic
from communis.results.wording.clock import goal
from communis.results.wording.traffic import COLUMNS, about_traffic


def section(
    runs: Sequence[Finished],
    metric: str,
    select: Select,
    targets: Sequence[float],
    explained: bool = False,
) -> Markup:
    """Empty without a target. explained: how to read it is on the page already."""
    by_target = traffic(runs, metric, select, targets)
    if not by_target:
        return EMPTY
    parts = [heading("Traffic until a score is reached")]
    parts.append(EMPTY if explained else note(about_traffic(runs, metric)))
    for reached in by_target:
        lines = [[row.method, *(show(row) for show in COLUMNS.values())] for row in reached.rows]
        parts.append(table([goal(reached.target, metric), *COLUMNS], lines))
    return stacked(*parts)
