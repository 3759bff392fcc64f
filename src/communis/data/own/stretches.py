"""Stretches: finds the rows of tables that form a recording, and turns them into streams at a
constant rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.memory import room
from communis.data.own.labels import Spans
from communis.data.own.manifest import KEYS, Column, Manifest, Part
from communis.data.own.tables import Table
from communis.data.recordings.recording import ROUNDED, UNLABELLED, Stream, on_grid

Tables = Mapping[str, Table]  # by pattern
Rows = Mapping[str, slice]  # by pattern
FAR = 1.25  # a rate that differs by a larger factor from the rate of the time stamps is an error


def stretches(tables: Tables, manifest: Manifest) -> Iterator[tuple[dict[str, str], Rows]]:
    """Yields the words of the key columns and the rows of every file, for each recording."""
    columns = {key: c for key in KEYS if (c := manifest.key(key).column) is not None}
    # Runs of different files belong together if their words are equal, and the number of earlier
    # runs with these words.
    joined: dict[tuple[tuple[str, ...], int], dict[str, slice]] = {}
    for pattern, table in tables.items():
        counts: Counter[tuple[str, ...]] = Counter()
        for words, rows in _runs(table, columns, _gap(manifest, pattern)):
            joined.setdefault((words, counts[words]), {})[pattern] = rows
            counts[words] += 1
    for (words, _), rows_of_run in joined.items():
        for part in _without_pauses(tables, rows_of_run, manifest):
            yield dict(zip(columns, words, strict=True)), part


def _runs(
    table: Table, columns: Mapping[str, Column], gap: float
) -> Iterator[tuple[tuple[str, ...], slice]]:
    """Yields the words of the key columns and the rows of each run, in which no key changes and
    time does not go back."""
    new = np.zeros(table.rows, bool)
    for key, column in columns.items():
        codes = table.words[column].codes
        if (codes < 0).any():
            row = int((codes < 0).argmax())
            raise CommunisError(f"{table.at(row)}: no {key} in {column!r}; complete the column")
        new[1:] |= np.diff(codes) != 0
    if table.time is not None:
        steps = np.diff(table.time, prepend=table.time[0])
        new |= steps < -gap
        backward = (steps < 0) & ~new
        if backward.any():
            raise CommunisError(
                f"{table.at(int(backward.argmax()))}: time goes back by {-steps[backward][0]:g} s; "
                "sort the rows (a step back by more than a gap begins a new recording)"
            )
    bounds = [0, *np.flatnonzero(new[1:]) + 1, table.rows]
    keys = [table.words[column] for column in columns.values()]
    for start, stop in pairwise(bounds):
        yield tuple(key.words[key.codes[start]] for key in keys), slice(start, stop)


def _without_pauses(tables: Tables, run: Rows, manifest: Manifest) -> Iterator[Rows]:
    """Yields the rows of a run in pieces, cut where no file has samples for longer than a pause."""
    times = {p: t[rows] for p, rows in run.items() if (t := tables[p].time) is not None}
    if not times:
        yield run
        return
    spans: list[tuple[float, float]] = []
    for pattern, t in times.items():
        pause = max(manifest.files.pause, 10 / _rate(manifest, pattern))
        cuts = np.flatnonzero(np.diff(t) > pause)
        begins = t[[0, *cuts + 1]]
        ends = t[[*cuts, -1]]
        spans += zip(begins, ends, strict=True)
    for begin, end in _merged(spans, manifest.files.pause):
        piece: dict[str, slice] = {}
        for pattern, t in times.items():
            start = np.searchsorted(t, begin)
            stop = np.searchsorted(t, end, "right")
            if stop > start:
                first = run[pattern].start
                piece[pattern] = slice(first + start, first + stop)
        yield piece


def _merged(spans: list[tuple[float, float]], pause: float) -> list[tuple[float, float]]:
    """Returns spans of time in which those that are at most a pause apart are one."""
    ordered = sorted(spans)
    merged = [ordered[0]]
    for begin, end in ordered[1:]:
        last_begin, last_end = merged[-1]
        if begin <= last_end + pause:
            merged[-1] = (last_begin, max(end, last_end))
        else:
            merged.append((begin, end))
    return merged


def streams(tables: Tables, rows: Rows, manifest: Manifest) -> dict[Modality, Stream]:
    """Returns every modality of one recording; it is all NaN if its file is missing or has no
    values."""
    sensed: dict[Modality, Stream] = {}
    for key, part in manifest.parts.items():
        if key.startswith("modalities.") and part.pattern in rows:
            stream = _values(tables, rows, manifest, key, part)
            if len(stream.values):
                sensed[key.partition(".")[2]] = stream
    seconds = max((stream.end for stream in sensed.values()), default=0.0)
    result: dict[Modality, Stream] = {}
    for name, part in manifest.modalities.items():
        if name in sensed:
            result[name] = sensed[name]
        else:
            steps = max(1, round(seconds * part.rate))
            missing = np.full((steps, len(part.columns)), np.nan, np.float32)
            result[name] = Stream(missing, part.rate)
    return result


def target(tables: Tables, rows: Rows, manifest: Manifest, classes: Array | Spans) -> Stream:
    """Returns the target of one recording: `classes` (of intervals, or one per row of its file), or
    values."""
    if isinstance(classes, Spans):
        return _in_intervals(tables, rows, manifest, classes)
    key = "label" if manifest.label else "target"
    part = manifest.parts[key]
    if part.pattern not in rows:
        return Stream(np.full(1, UNLABELLED), part.rate)
    if not len(classes):
        return _values(tables, rows, manifest, key, part)
    classes_of_rows = classes[rows[part.pattern]]
    times = _times(tables, rows, part)
    if times is None:
        return Stream(classes_of_rows, part.rate)
    _check_rate(tables[part.pattern], key, times, part.rate)
    if _even(times, part.rate):
        return Stream(classes_of_rows, part.rate, float(times[0]))
    steps = int((times[-1] - times[0]) * part.rate + ROUNDED) + 1
    grid = times[0] + np.arange(steps) / part.rate
    right = np.clip(np.searchsorted(times, grid), 1, len(times) - 1)
    left = right - 1
    nearest = np.where(grid - times[left] <= times[right] - grid, left, right)
    near = np.abs(times[nearest] - grid) <= _gap(manifest, part.pattern) / 2
    values = np.where(near, classes_of_rows[nearest], UNLABELLED)
    return Stream(values, part.rate, float(times[0]))


def _in_intervals(tables: Tables, rows: Rows, manifest: Manifest, spans: Spans) -> Stream:
    """Returns the classes of one recording over its time, at the rate of the fastest modality."""
    assert manifest.label is not None
    rate = manifest.label.rate or max(part.rate for part in manifest.modalities.values())
    begins = []
    ends = []
    first = np.inf  # of the files, of which the recording may be a part
    for pattern, span in rows.items():
        time = tables[pattern].time
        if time is None:
            step = 1 / _rate(manifest, pattern)
            first = 0.0
            begins.append(span.start * step)
            ends.append((span.stop - 1) * step)
        else:
            first = min(first, float(time[0]))
            begins.append(float(time[span.start]))
            ends.append(float(time[span.stop - 1]))
    begin = min(begins)
    steps = (max(ends) - begin) * rate + 1
    room(next(iter(tables.values())).path, 24 * steps, f"labels of {steps:.3g} steps")
    times = begin + np.arange(int(steps + ROUNDED)) / rate
    return Stream(spans.at(times - first if spans.relative else times), rate)


def _values(tables: Tables, rows: Rows, manifest: Manifest, key: str, part: Part) -> Stream:
    """Returns the columns of a part at its rate. If other columns of the file are faster, its
    samples are the rows in which it has a value."""
    table = tables[part.pattern]
    values = np.stack([table.numbers[c][rows[part.pattern]] for c in part.columns], 1)
    times = _times(tables, rows, part)
    fastest = _rate(manifest, part.pattern)
    if part.rate < fastest:
        if times is None:
            times = np.arange(len(values)) / fastest
        has_value = np.isfinite(values).any(1)
        times = times[has_value]
        values = values[has_value]
    if times is None or not len(times):
        return Stream(values, part.rate)
    start = float(times[0])
    if _even(times, part.rate):
        return Stream(values, part.rate, start)
    _check_rate(table, key, times, part.rate)
    gap = manifest.files.gap or 3 / part.rate
    return replace(on_grid(times - times[0], values, part.rate, gap), start=start)


def _times(tables: Tables, rows: Rows, part: Part) -> Array | None:
    """Returns the times of the rows in seconds after the beginning of the recording; None without
    time stamps."""
    time = tables[part.pattern].time
    if time is None:
        return None
    begin = min(t[r.start] for p, r in rows.items() if (t := tables[p].time) is not None)
    return np.asarray(time[rows[part.pattern]] - begin)


def _even(times: Array, rate: float) -> bool:
    """Returns whether every sample is within half a step of its position at a constant rate."""
    expected = times[0] + np.arange(len(times)) / rate
    return bool(np.abs(times - expected).max() <= 0.5 / rate)


def _check_rate(table: Table, key: str, times: Array, rate: float) -> None:
    """Raises an error if the time stamps have another rate than the manifest."""
    if len(times) < 10:
        return
    steps = np.diff(times)
    usual = float(np.median(steps))
    if usual <= 0:
        raise CommunisError(
            f"{table.path}: most time stamps are equal, too coarse for {key}.rate = {rate:g}; if "
            'the rows of one time stamp were sent together, set files.batches = "first" (or '
            '"last"); leave out files.time if the rate is constant'
        )
    measured = 1 / float(steps[steps <= 3 * usual].mean())
    if not 1 / FAR <= measured / rate <= FAR:
        raise CommunisError(
            f"{table.path}: the time stamps give about {measured:.3g} Hz, {key}.rate is {rate:g}; "
            "correct the rate or files.time_unit"
        )


def _rate(manifest: Manifest, pattern: str) -> float:
    """Returns the highest rate in the files of a pattern."""
    return max(part.rate for part in manifest.parts.values() if part.pattern == pattern)


def _gap(manifest: Manifest, pattern: str) -> float:
    """Returns the shortest time without samples that is not interpolated, in seconds."""
    return manifest.files.gap or 3 / _rate(manifest, pattern)
