"""Do clients pull in the same direction? How alike their updates are, by what they sense."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from communis.results.allocation import in_order
from communis.results.finished import Finished

KINDS = 15  # of pairs that are shown at most


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
