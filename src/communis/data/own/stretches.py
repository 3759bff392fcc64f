"""Stretches: rows of tables that belong together -> streams at a steady rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.data.own.manifest import KEYS, Column, Manifest, Part
from communis.data.own.tables import Table
from communis.data.recordings.recording import ROUNDED, UNLABELLED, Stream, on_grid

Tables = Mapping[str, Table]  # by pattern
Rows = Mapping[str, slice]  # by pattern
FAR = 1.25  # a rate that differs more from the time stamps' is a mistake


def stretches(tables: Tables, manifest: Manifest) -> Iterator[tuple[dict[str, str], Rows]]:
    """The words of the key columns, and the rows of every file, of each recording."""
    columns = {key: c for key in KEYS if (c := manifest.key(key).column) is not None}
    joined: dict[tuple[tuple[str, ...], int], dict[str, slice]] = {}
    for pattern, table in tables.items():
        seen: Counter[tuple[str, ...]] = Counter()
        for words, rows in _runs(table, columns, _gap(manifest, pattern)):
            joined.setdefault((words, seen[words]), {})[pattern] = rows
            seen[words] += 1
    for (words, _), together in joined.items():
        for part in _without_pauses(tables, together, manifest):
            yield dict(zip(columns, words, strict=True)), part


def _runs(
    table: Table, columns: Mapping[str, Column], gap: float
) -> Iterator[tuple[tuple[str, ...], slice]]:
    """Rows in which no key changes and time does not go back."""
    new = np.zeros(table.rows, bool)
    for key, column in columns.items():
        codes = table.words[column].codes
        if (codes < 0).any():
            raise CommunisError(f"{table.at(int((codes < 0).argmax()))}: no {key} in {column!r}")
        new[1:] |= np.diff(codes) != 0
    if table.time is not None:
        back = np.diff(table.time, prepend=table.time[0])
        new |= back < -gap
        wrong = (back < 0) & ~new
        if wrong.any():
            raise CommunisError(
                f"{table.at(int(wrong.argmax()))}: time goes back by {-back[wrong][0]:g} s; sort "
                "the rows (more than a gap would begin a new recording)"
            )
    bounds = [0, *np.flatnonzero(new[1:]) + 1, table.rows]
    for start, stop in pairwise(bounds):
        found = (table.words[c] for c in columns.values())
        yield tuple(w.words[w.codes[start]] for w in found), slice(start, stop)


def _without_pauses(tables: Tables, together: Rows, manifest: Manifest) -> Iterator[Rows]:
    """Rows of one recording cut where no file has samples for longer than a pause."""
    times = {p: t[rows] for p, rows in together.items() if (t := tables[p].time) is not None}
    if not times:
        yield together
        return
    spans: list[tuple[float, float]] = []
    for pattern, t in times.items():
        pause = max(manifest.files.pause, 10 / _rate(manifest, pattern))
        cuts = np.flatnonzero(np.diff(t) > pause)
        spans += zip(t[[0, *cuts + 1]], t[[*cuts, -1]], strict=True)
    spans.sort()
    merged = [spans[0]]
    for low, high in spans[1:]:
        if low <= merged[-1][1] + manifest.files.pause:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    for low, high in merged:
        found: dict[str, slice] = {}
        for pattern, t in times.items():
            start, stop = np.searchsorted(t, low), np.searchsorted(t, high, "right")
            first = together[pattern].start
            found |= {pattern: slice(first + start, first + stop)} if stop > start else {}
        yield found


def streams(tables: Tables, rows: Rows, manifest: Manifest) -> dict[Modality, Stream]:
    """Every modality of one stretch; all NaN where its file is missing or silent."""
    found: dict[Modality, Stream] = {}
    for key, part in manifest.parts.items():
        if key.startswith("modalities.") and part.pattern in rows:
            stream = _values(tables, rows, manifest, key, part)
            found |= {key.partition(".")[2]: stream} if len(stream.values) else {}
    seconds = max((s.end for s in found.values()), default=0.0)
    for name, part in manifest.modalities.items():
        if name not in found:
            steps = max(1, round(seconds * part.rate))
            found[name] = Stream(np.full((steps, len(part.columns)), np.nan, np.float32), part.rate)
    return {name: found[name] for name in manifest.modalities}


def target(tables: Tables, rows: Rows, manifest: Manifest, classes: Array) -> Stream:
    """The target of one stretch: `classes` (one per row of its file), or values."""
    key = "label" if manifest.label else "target"
    part = manifest.parts[key]
    if part.pattern not in rows:
        return Stream(np.full(1, UNLABELLED), part.rate)
    if not len(classes):
        return _values(tables, rows, manifest, key, part)
    chosen, times = classes[rows[part.pattern]], _times(tables, rows, part)
    if times is None:
        return Stream(chosen, part.rate)
    _check_rate(tables[part.pattern], key, times, part.rate)
    if _even(times, part.rate):
        return Stream(chosen, part.rate, float(times[0]))
    grid = times[0] + np.arange(int((times[-1] - times[0]) * part.rate + ROUNDED) + 1) / part.rate
    after = np.clip(np.searchsorted(times, grid), 1, len(times) - 1)
    nearest = np.where(grid - times[after - 1] <= times[after] - grid, after - 1, after)
    near = np.abs(times[nearest] - grid) <= _gap(manifest, part.pattern) / 2
    return Stream(np.where(near, chosen[nearest], UNLABELLED), part.rate, float(times[0]))


def _values(tables: Tables, rows: Rows, manifest: Manifest, key: str, part: Part) -> Stream:
    """The columns of a part at its rate. Where others in the file are faster, its samples are the
    rows in which it has a value."""
    table = tables[part.pattern]
    values = np.stack([table.numbers[c][rows[part.pattern]] for c in part.columns], 1)
    times, fastest = _times(tables, rows, part), _rate(manifest, part.pattern)
    if part.rate < fastest:
        there = np.isfinite(values).any(1)
        times = (np.arange(len(values)) / fastest if times is None else times)[there]
        values = values[there]
    if times is None:
        return Stream(values, part.rate)
    if not len(times) or _even(times, part.rate):
        return Stream(values, part.rate, float(times[0]) if len(times) else 0.0)
    _check_rate(table, key, times, part.rate)
    gap = manifest.files.gap or 3 / part.rate
    return replace(on_grid(times - times[0], values, part.rate, gap), start=float(times[0]))


def _times(tables: Tables, rows: Rows, part: Part) -> Array | None:
    """Seconds after the recording's beginning."""
    time = tables[part.pattern].time
    if time is None:
        return None
    begin = min(t[r.start] for p, r in rows.items() if (t := tables[p].time) is not None)
    return np.asarray(time[rows[part.pattern]] - begin)


def _even(times: Array, rate: float) -> bool:
    """Whether every sample is where a steady rate would have it, to half a step."""
    expected = times[0] + np.arange(len(times)) / rate
    return bool(np.abs(times - expected).max() <= 0.5 / rate)


def _check_rate(table: Table, key: str, times: Array, rate: float) -> None:
    if len(times) < 10:
        return
    steps = np.diff(times)
    usual = float(np.median(steps))
    if usual <= 0:
        raise CommunisError(
            f"{table.path}: most time stamps are equal, too coarse for {key}.rate = {rate:g}; "
            "leave out files.time if the samples are steady"
        )
    found = 1 / float(steps[steps <= 3 * usual].mean())
    if not 1 / FAR <= found / rate <= FAR:
        raise CommunisError(
            f"{table.path}: the time stamps say about {found:.3g} Hz, {key}.rate says {rate:g}; "
            "mend the rate or files.time_unit"
        )


def _rate(manifest: Manifest, pattern: str) -> float:
    return max(part.rate for part in manifest.parts.values() if part.pattern == pattern)


def _gap(manifest: Manifest, pattern: str) -> float:
    return manifest.files.gap or 3 / _rate(manifest, pattern)
