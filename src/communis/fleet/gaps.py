"""What is missing from a fleet's data, and when: by the configuration, or by nature."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from communis.core.arrays import Array
from communis.data.recordings.windows import UNUSED
from communis.fleet.availability.draw import natural
from communis.fleet.availability.timeline import durations, timeline
from communis.fleet.availability.trace import Trace
from communis.fleet.fleet import Fleet


def trace_of(fleet: Fleet) -> Trace:
    """What drops out by the configuration; if nothing does, what the data lacks of the sensors
    that clients own."""
    if fleet.outages and fleet.outages.trace:
        return fleet.outages.trace
    client_of = fleet.clients_of
    place = timeline(fleet.windows, client_of)
    seconds = durations(fleet.windows, client_of, place, len(fleet))
    found = natural(fleet.windows, client_of, place, seconds)
    kept = _owned(fleet)[found.client, found.modality]
    fields = ("client", "modality", "split", "start", "end")
    return replace(found, **{name: getattr(found, name)[kept] for name in fields})


def kept_trace(fleet: Fleet) -> Trace | None:
    """The trace that a run's folder keeps: None where nothing drops out and no window lacks a
    sensor of its client. The data itself is only read where some window does."""
    drawn = fleet.outages is not None and fleet.outages.trace is not None
    return trace_of(fleet) if drawn or (fleet.windows.seconds > 0 and _lacks(fleet)) else None


def _lacks(fleet: Fleet) -> bool:
    windows, client = fleet.windows, fleet.clients_of
    used, owned = (client >= 0) & (windows.split != UNUSED), _owned(fleet)
    return any(
        bool((used & ~windows.present[m] & owned[client, i]).any())
        for i, m in enumerate(windows.modalities)
        if m in windows.present
    )


def _owned(fleet: Fleet) -> Array:
    """(clients, modalities) bool."""
    return np.array([[m in suite for m in fleet.windows.modalities] for suite in fleet.suites])
