"""The gaps in a fleet's data as a trace: configured dropout, or samples that the data lack."""

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
    """Returns the trace of the configured dropout. Without one, it returns the gaps in the data of
    the sensors that clients own."""
    if fleet.outages and fleet.outages.trace:
        return fleet.outages.trace
    client_of = fleet.clients_of
    place = timeline(fleet.windows, client_of)
    seconds = durations(fleet.windows, client_of, place, len(fleet))
    trace = natural(fleet.windows, client_of, place, seconds)
    kept = _owned(fleet)[trace.client, trace.modality]
    return replace(
        trace,
        client=trace.client[kept],
        modality=trace.modality[kept],
        split=trace.split[kept],
        start=trace.start[kept],
        end=trace.end[kept],
    )


def kept_trace(fleet: Fleet) -> Trace | None:
    """Returns the trace that a run's folder keeps, or None if nothing drops out and every window
    has all sensors of its client. The data are read only if some window lacks a sensor."""
    if fleet.outages is not None and fleet.outages.trace is not None:
        return trace_of(fleet)
    if fleet.windows.seconds > 0 and _lacks_sensors(fleet):
        return trace_of(fleet)
    return None


def _lacks_sensors(fleet: Fleet) -> bool:
    """Whether any window that is used lacks a sensor of its client."""
    windows = fleet.windows
    client = fleet.clients_of
    used = (client >= 0) & (windows.split != UNUSED)
    owned = _owned(fleet)
    return any(
        bool((used & ~windows.present[m] & owned[client, i]).any())
        for i, m in enumerate(windows.modalities)
        if m in windows.present
    )


def _owned(fleet: Fleet) -> Array:
    """Returns (clients, modalities) bool: whether the client owns a sensor of the modality."""
    return np.array([[m in suite for m in fleet.windows.modalities] for suite in fleet.suites])
