"""Which rounds' test scores count: the last ones, or those where validation says to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from communis.core.metrics import better
from communis.core.selection import Select

if TYPE_CHECKING:
    import pandas as pd

Scores: TypeAlias = "pd.Series[float]"
TAIL = 5


def chosen(test: Scores, val: Scores, metric: str, select: Select) -> pd.Index[Any]:
    """Every client with the round that counts, or with each of those whose mean does: the earliest
    of equally good ones, the last one where nothing was validated. Both are sorted by client and
    round."""
    rounds = test.index.get_level_values("round")
    good = better(metric) * val[val.index.isin(test.index)]
    if select == "client":
        best = good.dropna().groupby("client").idxmax()
        last = [pair for pair in test.groupby("client").tail(1).index if pair[0] not in best.index]
        return test[test.index.isin([*best, *last])].index
    counts = rounds.unique().sort_values()[-(TAIL if select == "tail" else 1) :]
    if select == "common":
        means = good.groupby("round").mean()[~good.isna().groupby("round").any()]
        counts = means.nlargest(1).index if len(means) else counts
    found: pd.Index[Any] = test[rounds.isin(counts)].index
    return found
