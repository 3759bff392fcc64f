"""The partition that the data itself brings: one client per owner (subject, home, room)."""

from __future__ import annotations

import numpy as np

from communis.data.recording import Array
from communis.data.windows import Windows


def by_owner(windows: Windows) -> Array:
    """(N,) int64: the client of each window, owners numbered in sorted order."""
    _, client = np.unique(windows.owner, return_inverse=True)
    return client.astype(np.int64)
