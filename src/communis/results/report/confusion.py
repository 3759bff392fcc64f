"""Which classes are taken for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from communis.core.markup import EMPTY, element, stacked
from communis.core.selection import Select
from communis.results.confusion import Confusion, confusions, kept_round
from communis.results.finished import Finished
from communis.results.report.html import details, heading, note, warning

MOST = 30  # classes of a matrix that can be read
ROUNDS: Mapping[str, str] = {
    "last": "the last round",
    "best": "the best round by the mean validation score",
}


def section(runs: Sequence[Finished], select: Select) -> Markup:
    """A matrix for every method of one cell; empty where no run keeps predictions of classes."""
    found = [one for one in confusions(runs, select) if len(one.labels) <= MOST]
    if not found:
        return EMPTY
    about = note(
        f"Test windows of all clients and seeds after {ROUNDS[kept_round(select)]}. A row has the "
        "windows of a class, as shares of all of them by what they were taken for: the diagonal "
        "is right. All matrices have the same shades, from 0 to 1."
    )
    shown = [details(one.method, *_matrix(one)) for one in found]
    return stacked(heading("Which classes are taken for which"), about, *shown)


def _matrix(found: Confusion) -> list[Markup]:
    parts = [warning(problem) for problem in found.problems]
    if not found.runs:
        return parts
    said = [f"{found.windows.sum():,} windows of {found.runs} run{'s' * (found.runs > 1)}."]
    if found.unusable:
        said.append(f"{found.unusable:,} windows are left out: their scores are not finite.")
    return [*parts, note(" ".join(said)), _table(found)]


def _table(found: Confusion) -> Markup:
    support = found.windows.sum(1)
    heads = ["actual \\ predicted", *found.labels, "windows"]
    rows = [element("tr", *(element("th", name, scope="col") for name in heads))]
    for i, label in enumerate(found.labels):
        cells = [_cell(float(share)) for share in found.shares[i]]
        first = element("th", label, scope="row")
        rows.append(element("tr", first, *cells, element("td", f"{support[i]:,}")))
    return element("div", element("table", *rows), class_="scroll")


def _cell(share: float) -> Markup:
    if not np.isfinite(share):
        return element("td", "-")
    tint = f"color-mix(in srgb, #2563eb {60 * share:.0f}%, transparent)"
    return element("td", f"{share:.2f}" if share else "", style=f"background:{tint}")
