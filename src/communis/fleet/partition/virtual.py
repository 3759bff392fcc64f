"""Virtual clients: every owner becomes several clients, each with a stretch of its time."""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array

SPLITS = 3


def by_block(owner: Array, label: Array, split: Array, start: Array, per_owner: int) -> Array:
    """(N,) int64: client owner_rank * per_owner + block.

    The windows of one owner, label and split are put in order of `start` and cut into `per_owner`
    contiguous blocks of equal size (within one). So every client sees every label of its owner that
    has `per_owner` windows or more.
    """
    _, owner = np.unique(owner, return_inverse=True)
    _, label = np.unique(label, return_inverse=True)
    group = (owner * (int(label.max()) + 1) + label) * SPLITS + split
    order = np.argsort(start, kind="stable")
    small = group[order].astype(np.min_scalar_type(int(group.max())))  # sorted by radix, so faster
    order = order[np.argsort(small, kind="stable")]
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    sizes = np.diff(first, append=len(group))
    size = np.repeat(sizes, sizes)
    block = (np.arange(len(group)) - np.repeat(first, sizes)) * per_owner // size
    # A label with fewer windows than clients starts elsewhere, or the first client would get all.
    block = np.where(size < per_owner, (block + label[order]) % per_owner, block)
    client = np.empty(len(group), np.int64)
    client[order] = owner[order] * per_owner + block
    return client
