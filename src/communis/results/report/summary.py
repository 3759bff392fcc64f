"""The scores of the methods and their differences to the reference, as dots with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

from communis.core.markup import EMPTY, stacked
from communis.core.pooled import MEAN, POOLED, of_client, sibling
from communis.core.selection import Select
from communis.results.clientwise import Clientwise, clientwise
from communis.results.compare import by_seed, runs_by_cell, runs_by_method
from communis.results.constant import constant_mean
from communis.results.estimate import FEWEST, Estimate
from communis.results.finished import Finished
from communis.results.report.html import charts, note, table
from communis.results.report.svg import Whisker, whiskers
from communis.results.wording.numbers import plain

ABOUT = (
    "On the left, dots are means over seeds, rings are single seeds, and lines 95 % intervals of "
    "the mean (Student's t). On the right, differences are taken client by client within seeds; "
    "the intervals are of draws of seeds and of clients, who are the same people in every seed. p "
    "is two-sided and of the same draws; Holm's correction is for the number of methods, and the "
    "verdict goes by it. "
)
SHARES = ("accuracy", MEAN, POOLED)  # scores that cannot be larger than 1
FEW = f"With fewer than {FEWEST} seeds there are no intervals."


def pictures(
    runs: Sequence[Finished],
    order: Sequence[str],
    metric: str,
    select: Select,
    colours: Mapping[str, str],
    explained: bool = False,
) -> tuple[Markup, Markup]:
    """The pictures, and the differences in numbers. Of a grid the means over cells; both are empty
    for a single method. order: the methods, the best first."""
    if len(order) < 2:
        return EMPTY, EMPTY
    compared = clientwise(runs, metric, select)
    base = compared[0].against
    label = plain(of_client(metric))
    scores = whiskers(
        _scores(runs, order, metric, select, colours),
        f"Test {plain(metric)}",
        plain(metric),
        {"most frequent class": constant_mean(runs, metric, select)},
    )
    differences = whiskers(
        [Whisker(row.method, colours[row.method], row.mean, row.low, row.high) for row in compared],
        f"Test {label} against {base}",
        f"difference to {base}",
        {"no difference": 0.0},
    )
    about = EMPTY if explained else note(ABOUT + FEW)
    return charts(scores, differences), stacked(_table(compared, base), about)


def _scores(
    runs: Sequence[Finished],
    order: Sequence[str],
    metric: str,
    select: Select,
    colours: Mapping[str, str],
) -> list[Whisker]:
    groups, places = runs_by_method(runs), runs_by_cell(runs)
    rows = []
    for name in order:
        values = list(by_seed(groups[name], metric, select, places).values())
        mean = Estimate.of(values)
        reach = mean.half_width if mean.seeds >= FEWEST else math.nan
        finite = [value for value in values if math.isfinite(value)]
        high = mean.mean + reach
        if any(metric == sibling(metric, core) for core in SHARES):
            high = min(high, 1.0)
        rows.append(Whisker(name, colours[name], mean.mean, mean.mean - reach, high, finite))
    return rows


def _table(compared: Sequence[Clientwise], base: str) -> Markup:
    heads = [f"against {base}", "difference", "95 % interval", "clients\nbetter off"]
    heads += ["clients\nworse off", "of", "p", "p after\nHolm", "verdict"]
    lines = []
    for row in compared:
        interval = f"{row.low:+.3f} to {row.high:+.3f}" if math.isfinite(row.low) else "-"
        lines.append(
            [
                row.method,
                f"{row.mean:+.3f}" if math.isfinite(row.mean) else "-",
                interval,
                str(row.better),
                str(row.worse),
                str(row.clients),
                _p(row.p),
                _p(row.p_holm),
                row.verdict,
            ]
        )
    return table(heads, lines, text=(0, len(heads) - 1))


def _p(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"
