"""Shares: dealing windows out by drawn proportions, the same in every split."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.data.recordings.windows import TRAIN

SPLITS = 3
TRIES = 200  # draws before it is said that the wish cannot be met


def deal(
    kind: Array,
    split: Array,
    draw: Callable[[], Array],
    least: int,
    generator: np.random.Generator,
) -> Array:
    """(N,) int64: the client of each window. Windows of one kind are shared out by one row of
    `draw() -> (kinds, clients)`, split by split; which window goes where is shuffled.

    Shares are drawn again until every client has `least` training windows.
    """
    kinds = int(kind.max()) + 1
    group = kind * SPLITS + split
    sizes = np.bincount(group, minlength=kinds * SPLITS)
    counts = _counts_with_least(draw, sizes, least, generator)
    shuffled = generator.permutation(len(group))
    small = group[shuffled].astype(np.min_scalar_type(kinds * SPLITS))  # sorted by radix, so faster
    order = shuffled[np.argsort(small, kind="stable")]
    client = np.empty(len(group), np.int64)
    client[order] = np.repeat(np.tile(np.arange(counts.shape[1]), len(sizes)), counts.ravel())
    return client


def _counts_with_least(
    draw: Callable[[], Array], sizes: Array, least: int, generator: np.random.Generator
) -> Array:
    total, best = int(sizes[TRAIN::SPLITS].sum()), -1
    for _ in range(TRIES):
        counts = apportion(np.repeat(draw(), SPLITS, 0), sizes, generator)
        train = counts[TRAIN::SPLITS].sum(0)
        if train.min() >= least:
            return counts
        best = max(best, int(train.min()))
        if len(train) * least > total:
            break
    raise CommunisError(
        f"{total} training windows for {len(train)} clients: however often it was drawn, the "
        f"poorest had at most {best}, but least = {least}; choose fewer clients, a larger alpha or "
        "a smaller least in [partition]"
    )


def apportion(share: Array, sizes: Array, generator: np.random.Generator) -> Array:
    """(groups, clients) int64 from shares that sum to one per group: each count is its exact value
    rounded up or down, right on average, and every group adds up to its size.

    One random offset per group (systematic sampling), so that small groups do not all end up with
    the same clients.
    """
    upto = np.cumsum(share, 1)
    upto /= upto[:, -1:]
    edges = np.floor(upto * sizes[:, None] + generator.random((len(sizes), 1))).astype(np.int64)
    return np.diff(np.minimum(edges, sizes[:, None]), axis=1, prepend=0)
