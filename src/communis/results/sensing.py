"""Which sensors clients own, and how long these were missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from communis.data.recordings.windows import TRAIN
from communis.fleet.availability.trace import Trace


def missing(trace: Trace, suites: Sequence[Sequence[str]]) -> float:
    """The share of their training time that owned sensors are missing."""
    owned = np.array([[m in suite for m in trace.modalities] for suite in suites])
    time = owned * trace.seconds[: len(suites), None, TRAIN]
    return float((trace.share()[: len(suites), :, TRAIN] * time).sum() / max(time.sum(), 1e-9))
