"""Which round's test scores count, when validation scores say where to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from communis.metrics.estimate import better

if TYPE_CHECKING:
    import pandas as pd

Scores: TypeAlias = "pd.Series[float]"
# The last round; the one with the best mean validation score; or every client's own best.
Select = Literal["last", "common", "client"]
SELECTS: tuple[Select, ...] = ("last", "common", "client")


def chosen(test: Scores, val: Scores, metric: str, select: Select) -> pd.Index[Any]:
    """Every client with the round that counts: the earliest of equally good ones, the last one
    where nothing was validated. Both are sorted by client and round."""
    rounds = test.index.get_level_values("round")
    good = better(metric) * val[val.index.isin(test.index)]
    if select == "client":
        best = good.dropna().groupby("client").idxmax()
        last = [pair for pair in test.groupby("client").tail(1).index if pair[0] not in best.index]
        return test[test.index.isin([*best, *last])].index
    counts = rounds.max()
    if select == "common":
        means = good.groupby("round").mean()[~good.isna().groupby("round").any()]
        counts = means.idxmax() if len(means) else counts
    found: pd.Index[Any] = test[rounds == counts].index
    return found
