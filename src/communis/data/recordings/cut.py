"""Recordings -> windows of equal length, recording by recording, without loops over windows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.memory import room
from communis.data.recordings.recording import UNLABELLED, Dataset, Kind, Recording, Stream
from communis.data.recordings.resample import resampled

LEAST_PRESENT = 0.5  # a modality with fewer of its samples counts as absent from a window


@dataclass(frozen=True)
class Cut:
    """How windows are cut."""

    seconds: float
    stride: float = 0.0  # seconds from one window to the next; 0: windows do not overlap
    rate: float = 0.0  # Hz that all time series are resampled to; 0: each keeps its own

    def __post_init__(self) -> None:
        if self.seconds <= 0:
            raise CommunisError(f"window must be a positive number of seconds, got {self.seconds}")
        if self.stride < 0 or self.rate < 0:
            raise CommunisError("stride and rate must be at least 0")

    @property
    def step(self) -> float:
        return self.stride or self.seconds


@dataclass(frozen=True)
class Piece:
    """The windows of one recording."""

    inputs: Mapping[Modality, Array]  # (n, channels, ...) float32, NaN where nothing was sensed
    present: Mapping[Modality, Array]  # (n,) bool
    kinds: Mapping[Modality, Kind]
    target: Array  # (n,) int64 or (n, columns) float32
    start: Array  # (n,) seconds after the recording's beginning

    def __len__(self) -> int:
        return len(self.start)


def pieces(dataset: Dataset, how: Cut) -> Iterator[tuple[Recording, Piece]]:
    """Every recording with its windows. Left out: windows without a label, and those in which no
    sensor was at work."""
    for recording in dataset.recordings:
        try:
            yield recording, _piece(recording, how)
        except CommunisError as error:
            raise CommunisError(f"{recording.name or 'a recording'}: {error}") from None


def _piece(recording: Recording, how: Cut) -> Piece:
    count = int((recording.seconds - how.seconds) / how.step + 1e-6) + 1
    room("its windows", max(0, count) * _bytes(recording, how), f"{count} of {how.seconds:g} s")
    starts = np.arange(count if recording.seconds > how.seconds * (1 - 1e-6) else 0) * how.step
    target = _targets(recording.target, starts, how.seconds)
    labelled = target != UNLABELLED if target.ndim == 1 else np.isfinite(target).all(1)
    starts, target = starts[labelled], target[labelled]
    inputs, present = {}, {}
    for m, own in recording.streams.items():
        stream = resampled(own, how.rate) if how.rate and own.kind == "series" else own
        if stream.rate * how.seconds < 1 - 1e-6:
            raise CommunisError(
                f"a window of {how.seconds} s holds no step of {m}, which has {stream.rate} Hz: "
                f"choose a window of {1 / stream.rate:g} s or more"
            )
        windows = _laid_out(_gathered(stream, starts, how.seconds), stream.kind)
        inputs[m], present[m] = windows, sensed(windows, stream.kind)
    some = np.any(list(present.values()), axis=0)
    return Piece(
        {m: x[some] for m, x in inputs.items()} if not some.all() else inputs,
        {m: p[some] for m, p in present.items()},
        {m: stream.kind for m, stream in recording.streams.items()},
        target[some],
        starts[some],
    )


def _bytes(recording: Recording, how: Cut) -> float:
    """What a window of all modalities takes."""
    values = sum(
        (how.rate or s.rate) * math.prod(s.values.shape[1:]) for s in recording.streams.values()
    )
    return 8 + 4 * how.seconds * values


def sensed(windows: Array, kind: Kind) -> Array:
    """(n,) bool: the modality counts as present in these windows (n, ...)."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(windows.sum()):  # NaN and Inf survive a sum
            return np.ones(len(windows), bool)
    finite = np.isfinite(windows).reshape(len(windows), int(np.prod(windows.shape[1:])))
    if kind == "points":  # clouds are padded: how many points there are says nothing
        return np.asarray(finite.any(1))
    return np.asarray(finite.mean(1) >= LEAST_PRESENT)


def _gathered(stream: Stream, starts: Array, seconds: float) -> Array:
    """(n, ..., steps): the steps of every window; NaN before and after the stream (for labels: no
    label)."""
    steps = int(seconds * stream.rate + 1e-6) or 1
    first = np.floor((starts - stream.start) * stream.rate + 0.5).astype(np.int64)
    values = stream.values
    if len(first):
        before = max(0, -int(first.min()))
        after = max(0, int(first.max()) + steps - len(values))
        if before or after:
            whole = np.issubdtype(values.dtype, np.integer)
            border = [(before, after)] + [(0, 0)] * (values.ndim - 1)
            if not whole:
                values = np.asarray(values, np.float32)
            values = np.pad(values, border, constant_values=UNLABELLED if whole else np.nan)
        # Every window is a view; the index copies them. `sliding_window_view` is four times slower.
        every = as_strided(
            values,
            (len(values) - steps + 1, *values.shape[1:], steps),
            (*values.strides, values.strides[0]),
            writeable=False,
        )
        return np.asarray(every[first + before])
    return np.zeros((0, *values.shape[1:], steps), values.dtype)


def _laid_out(windows: Array, kind: Kind) -> Array:
    """Channels first: series (n, channels, steps), csi (n, antennas, subcarriers, packets), image
    (n, frames, height, width), points (n, features, frames * points)."""
    windows = np.asarray(windows, np.float32)
    if kind == "image":
        return np.ascontiguousarray(np.moveaxis(windows, -1, 1))
    if kind == "points":
        moved = windows.transpose(0, 2, 3, 1)
        count, features, frames, points = moved.shape
        return np.ascontiguousarray(moved).reshape(count, features, frames * points)
    return windows


def _targets(target: int | Stream, starts: Array, seconds: float) -> Array:
    """The class throughout, the class of most of a window, or the values in its middle."""
    if isinstance(target, int):
        return np.full(len(starts), target, np.int64)
    if target.rate * seconds < 1:  # a step outlasts a window: take the one that its middle is in
        starts, seconds = starts + (seconds - 1 / target.rate) / 2, 1 / target.rate
    steps = _gathered(target, starts, seconds)
    if target.values.ndim == 2:
        return np.asarray(steps[..., steps.shape[-1] // 2], np.float32)
    classes = int(target.values.max(initial=0)) + 2  # one more for what has no label
    cells = np.arange(len(steps))[:, None] * classes + steps + 1
    counts = np.bincount(cells.ravel(), minlength=len(steps) * classes)
    return np.asarray(counts.reshape(len(steps), classes).argmax(1) - 1, np.int64)
