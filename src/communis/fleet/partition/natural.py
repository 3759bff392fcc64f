"""Natural partitions: each owner (subject, home) or each scene of the data is a client."""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError, readable
from communis.data.recordings.windows import UNUSED, Windows

LONGEST_NAME = 60  # characters of a client's name


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


def client_names(windows: Windows, key: str, client_of: Array) -> tuple[str, ...]:
    """Returns the own name of every client, which is a subject or scene (`key`); nothing if the
    data have no names. Equal names of two clients get their numbers."""
    known = windows.names.get(key)
    if not known:
        return ()
    values = windows.owner if key == "subject" else windows.scene
    clients = int(client_of.max(initial=-1)) + 1
    # Clients are numbered in the order of the values, and values of unused windows count too.
    present = np.unique(values).tolist()[:clients]
    names = [readable(str(known.get(value, "")), LONGEST_NAME) for value in present]
    return tuple(f"{n} ({i})" if n and names.count(n) > 1 else n for i, n in enumerate(names))


def _numbered(values: Array, split: Array) -> Array:
    _, client = np.unique(values, return_inverse=True)
    return np.where(split == UNUSED, -1, client).astype(np.int64)
