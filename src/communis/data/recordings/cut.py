"""Cuts recordings into windows of equal length: recording by recording, without loops over
windows."""

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

LEAST_PRESENT = 0.5  # a modality with a smaller share of finite samples counts as absent


@dataclass(frozen=True)
class Cut:
    """Length, stride and rate of windows."""

    seconds: float
    stride: float = 0.0  # seconds from one window to the next; 0: windows do not overlap
    rate: float = 0.0  # Hz to which all time series are resampled; 0: each keeps its own rate

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
    rates: Mapping[Modality, float]  # Hz
    target: Array  # (n,) int64 or (n, columns) float32
    start: Array  # (n,) seconds after the beginning of the recording

    def __len__(self) -> int:
        return len(self.start)


def pieces(dataset: Dataset, how: Cut) -> Iterator[tuple[Recording, Piece]]:
    """Yields every recording with its windows. Windows without a label, and windows in which no
    sensor is present, are left out."""
    for recording in dataset.recordings:
        try:
            yield recording, _piece(recording, how)
        except CommunisError as error:
            raise CommunisError(f"{recording.name or 'a recording'}: {error}") from None


def _piece(recording: Recording, how: Cut) -> Piece:
    count = int((recording.seconds - how.seconds) / how.step + 1e-6) + 1
    room("its windows", max(0, count) * _bytes(recording, how), f"{count} of {how.seconds:g} s")
    if recording.seconds <= how.seconds * (1 - 1e-6):
        count = 0
    starts = np.arange(count) * how.step
    target = _targets(recording.target, starts, how.seconds)
    labelled = target != UNLABELLED if target.ndim == 1 else np.isfinite(target).all(1)
    starts = starts[labelled]
    target = target[labelled]
    inputs = {}
    present = {}
    kinds = {}
    rates = {}
    for m, original in recording.streams.items():
        resample = how.rate and original.kind == "series"
        stream = resampled(original, how.rate) if resample else original
        if stream.rate * how.seconds < 1 - 1e-6:
            raise CommunisError(
                f"a window of {how.seconds} s holds no step of {m}, which has {stream.rate} Hz: "
                f"choose a window of {1 / stream.rate:g} s or more"
            )
        windows = _laid_out(_gathered(stream, starts, how.seconds), stream.kind)
        inputs[m] = windows
        present[m] = sensed(windows, stream.kind)
        kinds[m] = stream.kind
        rates[m] = stream.rate
    not_empty = np.any(list(present.values()), axis=0)
    if not not_empty.all():
        inputs = {m: windows[not_empty] for m, windows in inputs.items()}
    return Piece(
        inputs,
        {m: flags[not_empty] for m, flags in present.items()},
        kinds,
        rates,
        target[not_empty],
        starts[not_empty],
    )


def _bytes(recording: Recording, how: Cut) -> float:
    """Returns the memory that one window of all modalities takes."""
    values = 0.0
    for stream in recording.streams.values():
        values += (how.rate or stream.rate) * math.prod(stream.values.shape[1:])
    return 8 + 4 * how.seconds * values


def sensed(windows: Array, kind: Kind) -> Array:
    """Returns (n,) bool: whether the modality counts as present in these windows (n, ...)."""
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(windows.sum()):  # a sum with NaN or Inf is not finite
            return np.ones(len(windows), bool)
    finite = np.isfinite(windows).reshape(len(windows), int(np.prod(windows.shape[1:])))
    if kind == "points":  # clouds are padded: the share of finite points has no meaning
        return np.asarray(finite.any(1))
    return np.asarray(finite.mean(1) >= LEAST_PRESENT)


def _gathered(stream: Stream, starts: Array, seconds: float) -> Array:
    """Returns (n, ..., steps): the steps of every window. Before and after the stream, values are
    NaN and labels are UNLABELLED."""
    steps = int(seconds * stream.rate + 1e-6) or 1
    first = np.floor((starts - stream.start) * stream.rate + 0.5).astype(np.int64)
    values = stream.values
    if not len(first):
        return np.zeros((0, *values.shape[1:], steps), values.dtype)
    before = max(0, -int(first.min()))
    after = max(0, int(first.max()) + steps - len(values))
    if before or after:
        padding = [(before, after)] + [(0, 0)] * (values.ndim - 1)
        if np.issubdtype(values.dtype, np.integer):
            values = np.pad(values, padding, constant_values=UNLABELLED)
        else:
            values = np.pad(np.asarray(values, np.float32), padding, constant_values=np.nan)
    # Windows at every step are views; the index copies those that are wanted. This is faster than
    # `sliding_window_view`.
    views = as_strided(
        values,
        (len(values) - steps + 1, *values.shape[1:], steps),
        (*values.strides, values.strides[0]),
        writeable=False,
    )
    return np.asarray(views[first + before])


def _laid_out(windows: Array, kind: Kind) -> Array:
    """Returns windows with channels first: series (n, channels, steps), csi (n, antennas,
    subcarriers, packets), image (n, frames, height, width), points (n, features, frames *
    points)."""
    windows = np.asarray(windows, np.float32)
    if kind == "image":
        return np.ascontiguousarray(np.moveaxis(windows, -1, 1))
    if kind == "points":
        moved = windows.transpose(0, 2, 3, 1)
        count, features, frames, points = moved.shape
        return np.ascontiguousarray(moved).reshape(count, features, frames * points)
    return windows


def _targets(target: int | Stream, starts: Array, seconds: float) -> Array:
    """Returns the target of every window: the class of the recording, the most frequent class in
    the window, or the values in the middle of the window."""
    if isinstance(target, int):
        return np.full(len(starts), target, np.int64)
    if target.rate * seconds < 1:  # a step is longer than a window: use the step at its middle
        starts = starts + (seconds - 1 / target.rate) / 2
        seconds = 1 / target.rate
    steps = _gathered(target, starts, seconds)
    if target.values.ndim == 2:
        return np.asarray(steps[..., steps.shape[-1] // 2], np.float32)
    classes = int(target.values.max(initial=0)) + 2  # one more for UNLABELLED
    bins = np.arange(len(steps))[:, None] * classes + steps + 1  # one bin per window and class
    counts = np.bincount(bins.ravel(), minlength=len(steps) * classes)
    return np.asarray(counts.reshape(len(steps), classes).argmax(1) - 1, np.int64)
