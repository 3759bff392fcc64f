"""Do clients pull in the same direction? The cosines of their updates, by what they sense."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.results.compare import plainest, runs_by_method
from communis.results.finished import Finished
from communis.results.report.html import figure, heading, note, row, shaded, unfolded
from communis.results.updates import KINDS, by_kind, pairs, thirds

ABOUT = (
    "The mean cosine between what two clients changed of a group of parameters in the same round, "
    "by what they sense: 1 if they pull in the same direction, 0 if one has nothing to do with the "
    "other, less if they work against each other. Blocks of the fusion come first. n is the "
    "number of pairs x rounds x seeds in a mean; where groups have not been trained alike often, "
    "from the fewest to the most. Such values are not independent of each other: the same clients "
    "return in many pairs and rounds."
)


def section(runs: Sequence[Finished]) -> Markup:
    """The runs are those of one cell. Empty where pairs were not written down."""
    drawn = {}
    base, groups = plainest(runs), runs_by_method(runs)
    for name in sorted(groups, key=lambda name: name != base):
        of_pairs = pairs(groups[name])
        if of_pairs.empty:
            continue
        early, late = thirds(of_pairs)
        tables = [by_kind(part) for part in (early, late)]
        values = np.concatenate([t.to_numpy().ravel() for t in tables])
        span = float(np.nanmin(values)), float(np.nanmax(values))
        figures = [
            figure(_rounds(part), shaded(wide, "group", span, ".2f"))
            for part, wide in zip((early, late), tables, strict=True)
        ]
        drawn[name] = row(*figures)
        if (kinds := of_pairs["kind"].nunique()) > KINDS:
            drawn[name] += note(f"The {KINDS} most frequent of {kinds} kinds of pairs.")
    if not drawn:
        return EMPTY
    title = heading("Do clients pull in the same direction?")
    return title + note(ABOUT) + unfolded(drawn)


def _rounds(table: pd.DataFrame) -> str:
    rounds = sorted(table["round"].unique())
    if len(rounds) == 1:
        return f"Round {rounds[0]}"
    return f"Rounds {rounds[0]} to {rounds[-1]} ({len(rounds)} of them recorded)"
