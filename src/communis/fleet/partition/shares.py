"""Assigns windows to clients in drawn proportions, which are the same in every split."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.data.recordings.windows import TRAIN

SPLITS = 3
TRIES = 200  # draws before `least` is reported as impossible


def deal(
    kind: Array,
    split: Array,
    draw: Callable[[], Array],
    least: int,
    generator: np.random.Generator,
) -> Array:
    """Returns (N,) int64: the client of each window. Windows of one kind are divided by one row of
    `draw() -> (kinds, clients)`, split by split; the order of the windows is shuffled.

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
    total = int(sizes[TRAIN::SPLITS].sum())
    best = -1
    for _ in range(TRIES):
        counts = apportion(np.repeat(draw(), SPLITS, 0), sizes, generator)
        train = counts[TRAIN::SPLITS].sum(0)
        if train.min() >= least:
            return counts
        best = max(best, int(train.min()))
        if len(train) * least > total:
            break
    raise CommunisError(
        f"{total} training windows for {len(train)} clients: in every draw, some client had at "
        f"most {best}, but least = {least}; choose fewer clients, a larger alpha or a smaller "
        "least in [partition]"
    )


def apportion(share: Array, sizes: Array, generator: np.random.Generator) -> Array:
    """Returns counts (groups, clients) int64 from shares that sum to one per group. Each count is
    its exact value rounded up or down, unbiased, and the counts of a group add up to its size.

    Each group has one random offset (systematic sampling), so that small groups do not all go to
    the same clients.
    """
    cumulative = np.cumsum(share, 1)
    cumulative /= cumulative[:, -1:]
    offset = generator.random((len(sizes), 1))
    edges = np.floor(cumulative * sizes[:, None] + offset).astype(np.int64)
    return np.diff(np.minimum(edges, sizes[:, None]), axis=1, prepend=0)
