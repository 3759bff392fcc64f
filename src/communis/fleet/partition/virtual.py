"""Virtual clients: every owner becomes several clients, each with a part of its time."""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array

SPLITS = 3


def by_block(owner: Array, label: Array, split: Array, start: Array, per_owner: int) -> Array:
    """Returns (N,) int64: the client owner_rank * per_owner + block.

    The windows of one owner, label and split are sorted by `start` and cut into `per_owner`
    contiguous blocks of equal size (within one). Every client therefore has every label of its
    owner that has `per_owner` windows or more.
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
    # A label with fewer windows than clients starts at another client: otherwise the first client
    # would get all of them.
    block = np.where(size < per_owner, (block + label[order]) % per_owner, block)
    client = np.empty(len(group), np.int64)
    client[order] = owner[order] * per_owner + block
    return client
