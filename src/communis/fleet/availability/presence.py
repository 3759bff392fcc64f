"""Presence: which samples of a client's windows its sensors have delivered."""

from __future__ import annotations

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.data.recordings.windows import Windows
from communis.fleet.availability.trace import SPLITS, Trace

IN_TIME = ("series", "csi")  # kinds whose last axis is the time within a window


def presence(
    trace: Trace,
    windows: Windows,
    place: Array,
    rows: slice | Array,
    client: int,
    modality: Modality,
) -> Array:
    """Returns (n, steps) bool: which samples of the windows `rows` of a client are present. The
    result is (n,) for kinds without a time axis, where a window is present if its centre is.

    place: each window's start on its client's timeline (`timeline`).
    """
    split, start = windows.split[rows], place[rows]
    in_time = windows.kinds.get(modality, "series") in IN_TIME
    steps = windows.inputs[modality].shape[-1] if in_time else 1
    there = np.ones((len(start), steps), bool)
    for s in range(len(SPLITS)):
        here = np.flatnonzero(split == s)
        if in_time and not trace.by_window[s]:
            within = np.arange(steps) * (windows.seconds / steps)
        else:
            within = np.array([windows.seconds / 2])
        there[here] = ~trace.missing(client, modality, s, start[here, None] + within)
    return there if in_time else there[:, 0]


def enough(there: Array, least: float | Array) -> Array:
    """Returns (n,) bool: whether a window has at least the share `least` of its samples. `least` is
    one share for all windows or one per window."""
    if there.ndim == 1:
        return there
    suffices: Array = there.mean(1) >= least - 1e-9
    return suffices
