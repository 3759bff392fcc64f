"""The rounds whose test scores count: the last ones, or those that validation scores choose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from communis.core.metrics import better
from communis.core.selection import Select

if TYPE_CHECKING:
    import pandas as pd

Scores: TypeAlias = "pd.Series[float]"
TAIL = 5  # rounds of the selection "tail"


def chosen(test: Scores, val: Scores, metric: str, select: Select) -> pd.Index[Any]:
    """Every client with the round that counts, or with each of the rounds over which its mean is
    taken. Of equally good rounds the earliest counts, and without validation scores the last one.
    test, val: scores by client and round, sorted by both."""
    rounds = test.index.get_level_values("round")
    # The larger, the better.
    goodness = better(metric) * val[val.index.isin(test.index)]
    if select == "client":
        best = goodness.dropna().groupby("client").idxmax()
        last = [pair for pair in test.groupby("client").tail(1).index if pair[0] not in best.index]
        return test[test.index.isin([*best, *last])].index
    most = TAIL if select == "tail" else 1
    counting = rounds.unique().sort_values()[-most:]
    if select == "common":
        of_all_clients = ~goodness.isna().groupby("round").any()
        means = goodness.groupby("round").mean()[of_all_clients]
        counting = means.nlargest(1).index if len(means) else counting
    pairs: pd.Index[Any] = test[rounds.isin(counting)].index
    return pairs
