"""Similarity of the clients' updates by the sensors that clients own."""

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
        table = run.pairs
        both = zip(table["one"], table["other"], strict=True)
        kinds = [_kind(run.sensors.get(one, ()), run.sensors.get(other, ())) for one, other in both]
        parts.append(table.assign(kind=kinds, seed=run.seed))
    return pd.concat(parts, ignore_index=True)


def _kind(one: Sequence[str], other: Sequence[str]) -> str:
    richest_first = sorted((one, other), key=lambda suite: (-len(suite), suite))
    return " - ".join("+".join(suite) for suite in richest_first)


def thirds(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the rows of the first third of the rounds, and those of the last."""
    rounds = np.sort(table["round"].unique())
    size = max(1, len(rounds) // 3)
    first, last = rounds[:size], rounds[-size:]
    return table[table["round"].isin(first)], table[table["round"].isin(last)]


def cosines(table: pd.DataFrame) -> pd.DataFrame:
    """The mean cosine by group and kind of pair, with `n`, the number of values: columns group,
    kind, cosine, n."""
    by_both = table.groupby(["group", "kind"])["cosine"]
    return by_both.agg(cosine="mean", n="count").reset_index()


def by_kind(table: pd.DataFrame) -> pd.DataFrame:
    """Returns the mean cosine by group and the most frequent kinds of pairs; heads of columns have
    the number of values."""
    means = cosines(table)
    wide = means.pivot(index="group", columns="kind", values="cosine")
    counts = means.pivot(index="group", columns="kind", values="n")
    frequent = counts.max().sort_values(ascending=False, kind="stable").index[:KINDS]
    order = sorted(frequent, key=_by_richness)
    wide = wide.reindex(index=in_order(table["group"].unique()), columns=order)
    wide.columns = pd.Index([_head(kind, counts[kind].dropna()) for kind in order])
    return wide


def _by_richness(kind: str) -> list[tuple[int, str]]:
    return [(-suite.count("+"), suite) for suite in kind.split(" - ")]


def _head(kind: str, counts: pd.Series[float]) -> str:
    """The head of a column, line by line: both suites and the number of values."""
    first, *others = kind.split(" - ")
    fewest, most = int(counts.min()), int(counts.max())
    n = str(fewest) if fewest == most else f"{fewest} to {most}"
    return "\n".join([f"{first} -", *others, f"n {n}"])
