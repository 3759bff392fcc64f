"""Draws traces from dropout settings, and derives traces from NaN in the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.data.recordings.windows import UNUSED, Windows
from communis.fleet.availability.dropout import Dropout, missing_runs
from communis.fleet.availability.presence import IN_TIME
from communis.fleet.availability.trace import SPLITS, Trace

CHUNK = 4096  # windows read at once
TOUCHING = 1e-6  # seconds


def draw(
    dropouts: Sequence[Dropout],
    suites: Sequence[tuple[Modality, ...]],
    seconds: Array,
    rates: Mapping[Modality, float],
    streams: Streams,
    spacing: float = 0.0,
    single: Collection[Modality] = (),
    number: int = 0,
) -> Trace:
    """Draws a trace for clients that own `suites` and whose timelines last `seconds` (clients, 3).

    dropouts: one per split; rates: Hz of every modality; spacing: time between windows, for iid;
    single: modalities of which a window is one sample, at its centre; number: number of the draw.
    The dropout of a sensor does not depend on the other sensors that are owned: chains are drawn
    for all clients and modalities, and those not owned are left out afterwards.
    """
    names = tuple(sorted(rates))
    owned = np.array([[m in suite for m in names] for suite in suites]).reshape(-1, len(names))
    further = (number,) if number else ()
    parts: list[tuple[Array, ...]] = []
    for split, dropout in enumerate(dropouts):
        if dropout.kind == "none":
            continue
        hz, operating, missing = _laws(dropout, [rates[m] for m in names], names, spacing)
        steps = np.ceil(seconds[:, split, None] * hz - 1e-6).astype(np.int64)
        chain, first, stop = missing_runs(
            steps.ravel(),
            np.tile(operating, len(steps)),
            np.tile(missing, len(steps)),
            streams.generator("dropout", split, *further),
        )
        client, m = np.divmod(chain, len(names))
        # Edges lie half-way between two samples, where rounding cannot move a sample across.
        middle = [dropout.kind == "markov" and name in single for name in names]
        before = np.where(middle, 0.0, 0.5)[m]
        start = np.maximum(first - before, 0) / hz[m]
        last = stop == steps.ravel()[chain]
        end = np.where(last, seconds[client, split], (stop - before) / hz[m])
        keep = owned[client, m]
        columns = client, m, np.full(len(m), split), start, end
        parts.append(tuple(column[keep] for column in columns))
    intervals = _by_sensor(parts, len(names))[1:]
    train, val, test = (dropout.kind == "iid" for dropout in dropouts)
    least = (dropouts[0].least, dropouts[1].least, dropouts[2].least)
    return Trace(names, np.asarray(seconds, float), *intervals, (train, val, test), least)


def natural(windows: Windows, client_of: Array, place: Array, seconds: Array) -> Trace:
    """Returns the trace of the gaps in the data: a sensor is missing where all its channels are
    NaN."""
    parts: list[tuple[Array, ...]] = []
    used = np.flatnonzero((client_of >= 0) & (windows.split != UNUSED))
    for m, name in enumerate(windows.modalities):
        values = windows.inputs[name]
        in_time = windows.kinds.get(name, "series") in IN_TIME
        steps = values.shape[-1] if in_time else 1
        for at in range(0, len(used), CHUNK):
            rows = used[at : at + CHUNK]
            known = np.isfinite(values[rows])
            known = known.any(tuple(range(1, known.ndim - in_time))).reshape(len(rows), steps)
            if name in windows.present:
                known &= windows.present[name][rows, None]
            change = np.diff(~known, axis=1, prepend=False, append=False)
            row, edge = (index.reshape(-1, 2) for index in np.nonzero(change))
            row = rows[row[:, 0]]
            start = place[row] + edge[:, 0] * windows.seconds / steps
            end = place[row] + edge[:, 1] * windows.seconds / steps
            parts.append((client_of[row], np.full(len(row), m), windows.split[row], start, end))
        windows.release()
    intervals = _merged(*_by_sensor(parts, len(windows.inputs)))
    return Trace(windows.modalities, seconds, *intervals)


def _laws(
    dropout: Dropout, rates: Sequence[float], names: Sequence[Modality], spacing: float
) -> tuple[Array, Array, Array]:
    """Returns, for each modality, steps per second and the expected run lengths in steps."""
    if dropout.kind == "iid":
        if spacing <= 0:
            raise CommunisError("iid dropout needs the time between windows")
        # Steps are independent and so short that no two windows have their centres in the same one.
        hz = np.full(len(rates), 2 / spacing)
        operating = np.full(len(rates), 1 / dropout.rate)
        missing = np.full(len(rates), 1 / (1 - dropout.rate))
        return hz, operating, missing
    hz = np.array(rates, float)
    operating, missing = (hz * seconds for seconds in dropout.bursts)
    short = np.flatnonzero(np.minimum(operating, missing) < 1)
    if len(short):
        raise CommunisError(
            f"dropout bursts of {min(dropout.bursts):g} s are shorter than one sample of "
            f"{names[short[0]]} at {hz[short[0]]:g} Hz; choose longer bursts"
        )
    return hz, operating, missing


def _by_sensor(
    parts: Sequence[tuple[Array, ...]], width: int
) -> tuple[Array, Array, Array, Array, Array, Array]:
    """Returns the sensor number, client, modality, split, start and end of all intervals, sorted by
    sensor."""
    client, modality, split, start, end = (
        np.concatenate([np.zeros(0, kind), *(part[i] for part in parts)])
        for i, kind in enumerate((np.int64, np.int64, np.int64, np.float64, np.float64))
    )
    sensor = (client * width + modality) * len(SPLITS) + split
    order = np.argsort(sensor, kind="stable")
    return (
        sensor[order], client[order], modality[order], split[order], start[order], end[order]
    )  # fmt: skip


def _merged(
    sensor: Array, client: Array, modality: Array, split: Array, start: Array, end: Array
) -> tuple[Array, Array, Array, Array, Array]:
    """Merges the intervals of overlapping windows, sensor by sensor."""
    order = np.lexsort((start, sensor))
    start, end = start[order], end[order]
    apart = sensor * (end.max(initial=0) + 1)  # so the running maximum does not cross sensors
    reached = np.maximum.accumulate(end + apart)
    new = np.ones(len(sensor), bool)
    new[1:] = (start + apart)[1:] > reached[:-1] + TOUCHING
    last = np.flatnonzero(np.append(new[1:], True)[: len(new)])
    kept = order[new]
    return client[kept], modality[kept], split[kept], start[new], (reached - apart)[last]
