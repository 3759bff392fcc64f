"""Natural partitions: each owner (subject, home) or each scene of the data is a client."""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.data.recordings.windows import UNUSED, Windows


def by_owner(windows: Windows) -> Array:
    """Returns (N,) int64: the client of each window, owners numbered in sorted order; -1 if
    unused."""
    return _numbered(windows.owner, windows.split)


def by_scene(windows: Windows) -> Array:
    """Returns (N,) int64: the client of each window, scenes numbered in sorted order; -1 if
    unused."""
    if windows.scene.min() == windows.scene.max():
        raise CommunisError(
            "by = 'scene': all windows are of one scene, which would make a single client; choose "
            "subject, dirichlet, quantity or virtual in [partition] by"
        )
    return _numbered(windows.scene, windows.split)


def _numbered(values: Array, split: Array) -> Array:
    _, client = np.unique(values, return_inverse=True)
    return np.where(split == UNUSED, -1, client).astype(np.int64)
