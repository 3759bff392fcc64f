"""Which sensors clients own, and how long these were missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from communis.core.arrays import Array
from communis.data.recordings.windows import TRAIN
from communis.fleet.availability.trace import Trace


def missing(trace: Trace, suites: Sequence[Sequence[str]]) -> float:
    """The share of their training time that owned sensors are missing."""
    owned = np.array([[m in suite for m in trace.modalities] for suite in suites])
    time = owned * trace.seconds[: len(suites), None, TRAIN]
    return float((missing_by_sensor(trace, suites) * time).sum() / max(time.sum(), 1e-9))


def missing_by_sensor(trace: Trace, suites: Sequence[Sequence[str]]) -> Array:
    """(clients, modalities of the trace): the share of a client's training time that its sensor is
    missing; without meaning for sensors that it does not own."""
    return np.asarray(trace.share()[: len(suites), :, TRAIN])


def missing_by_split(trace: Trace, suite: Sequence[str], client: int) -> Array:
    """The mean share over a client's sensors by split."""
    owned = [trace.modalities.index(modality) for modality in suite]
    return np.asarray(trace.share()[client, owned].mean(0))
