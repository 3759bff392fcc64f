"""Do clients pull in the same direction? How alike their updates are, by what they sense."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from markupsafe import Markup

from communis.core.markup import EMPTY
from communis.results.compare import grouped, plainest
from communis.results.finished import Finished
from communis.results.report.allocation import in_order
from communis.results.report.html import figure, heading, note, row, shaded, unfolded

KINDS = 15  # of pairs that are shown at most
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
    base, groups = plainest(runs), grouped(runs)
    for name in sorted(groups, key=lambda name: name != base):
        found = pairs(groups[name])
        if found.empty:
            continue
        early, late = thirds(found)
        tables = [cosines(part) for part in (early, late)]
        values = np.concatenate([t.to_numpy().ravel() for t in tables])
        span = float(np.nanmin(values)), float(np.nanmax(values))
        figures = [
            figure(_rounds(part), shaded(wide, "group", span, ".2f"))
            for part, wide in zip((early, late), tables, strict=True)
        ]
        drawn[name] = row(*figures)
        if (kinds := found["kind"].nunique()) > KINDS:
            drawn[name] += note(f"The {KINDS} most frequent of {kinds} kinds of pairs.")
    if not drawn:
        return EMPTY
    title = heading("Do clients pull in the same direction?")
    return title + note(ABOUT) + unfolded(drawn)


def pairs(group: Sequence[Finished]) -> pd.DataFrame:
    """Every pair of every run with its `kind`, such as "acc+gyro - acc": the richer suite first."""
    parts = []
    for run in group:
        t = run.pairs
        suites = {c: run.sensors.get(c, ()) for c in {*t["one"], *t["other"]}}
        kinds = [
            " - ".join("+".join(suite) for suite in sorted(two, key=lambda s: (-len(s), s)))
            for two in ((suites[a], suites[b]) for a, b in zip(t["one"], t["other"], strict=True))
        ]
        parts.append(t.assign(kind=kinds, seed=run.seed))
    return pd.concat(parts, ignore_index=True)


def thirds(found: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What belongs to the first third of the rounds, and to the last."""
    rounds = np.sort(found["round"].unique())
    size = max(1, len(rounds) // 3)
    return found[found["round"].isin(rounds[:size])], found[found["round"].isin(rounds[-size:])]


def cosines(found: pd.DataFrame) -> pd.DataFrame:
    """Groups x kinds of pairs; kinds say how many values they are means of."""
    by_both = found.groupby(["group", "kind"])["cosine"]
    wide, counts = by_both.mean().unstack(), by_both.count().unstack()
    frequent = counts.max().sort_values(ascending=False, kind="stable").index[:KINDS]
    order = sorted(frequent, key=lambda kind: [(-s.count("+"), s) for s in kind.split(" - ")])
    wide = wide.reindex(index=in_order(found["group"].unique()), columns=order)
    heads = [[*kind.split(" - "), f"n {_counts(counts[kind].dropna())}"] for kind in order]
    wide.columns = pd.Index(["\n".join([f"{one} -", *rest]) for one, *rest in heads])
    return wide


def _counts(found: pd.Series[float]) -> str:
    low, high = int(found.min()), int(found.max())
    return str(low) if low == high else f"{low} to {high}"


def _rounds(found: pd.DataFrame) -> str:
    rounds = sorted(found["round"].unique())
    if len(rounds) == 1:
        return f"Round {rounds[0]}"
    return f"Rounds {rounds[0]} to {rounds[-1]} ({len(rounds)} of them recorded)"
