"""Timeline: the time at which each window starts on the timeline of its client."""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array
from communis.data.recordings.windows import UNUSED, Windows

NEAREST = 1 / 64  # of a window's length; windows that begin closer together drop out together


def timeline(windows: Windows, client_of: Array) -> Array:
    """Returns (N,) float64: the second on its client's timeline at which each window starts.

    A client with one owner has the owner's time. Several owners follow one another, each until the
    end of its last window in this client.
    """
    _, owner = np.unique(windows.owner, return_inverse=True)
    pairs, pair = np.unique(client_of * (owner.max() + 1) + owner, return_inverse=True)
    length = np.zeros(len(pairs))
    np.maximum.at(length, pair, windows.start + windows.seconds)
    before = np.cumsum(length) - length  # of all pairs before, in order of client
    _, first = np.unique(pairs // (owner.max() + 1), return_index=True)
    client = np.repeat(np.arange(len(first)), np.diff(first, append=len(pairs)))
    offset: Array = before - before[first][client]
    return windows.start + offset[pair]


def durations(windows: Windows, client_of: Array, place: Array, clients: int) -> Array:
    """Returns (clients, 3): the second at which the last window of each client and split ends."""
    used = (client_of >= 0) & (windows.split != UNUSED)
    ends = np.zeros((clients, 3))
    np.maximum.at(ends, (client_of[used], windows.split[used]), place[used] + windows.seconds)
    return ends


def spacing(windows: Windows, client_of: Array, place: Array) -> float:
    """Returns the shortest time between the starts of two windows of one client."""
    order = np.lexsort((place, client_of))
    same = np.diff(client_of[order]) == 0
    apart = np.diff(place[order])[same]
    shortest = float(apart.min(initial=windows.seconds))
    return max(shortest, NEAREST * windows.seconds)
