"""Recording: what a dataset source reads from its files, before windows are cut."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from torch import nn

from communis.core.arrays import Array
from communis.core.contract import Modality, Task
from communis.core.errors import CommunisError
from communis.core.memory import room

Kind = Literal["series", "csi", "points", "image"]
UNLABELLED = -1


def nameable(modality: Modality) -> bool:
    """Whether a model can have a part of this name: an identifier that is no method of its own."""
    return modality.isidentifier() and not hasattr(nn.ModuleDict(), modality)


@dataclass(frozen=True)
class Stream:
    """Values of one modality (or of the target) at a steady rate; NaN where nothing was sensed.

    By kind, values are
        series  (steps, channels)
        csi     (packets, antennas, subcarriers)
        points  (frames, points, features), padded with NaN
        image   (frames, height, width)
    """

    values: Array
    rate: float  # Hz
    start: float = 0.0  # seconds after the recording's beginning
    kind: Kind = "series"

    @property
    def end(self) -> float:
        return self.start + len(self.values) / self.rate


@dataclass(frozen=True)
class Recording:
    """One uninterrupted recording of one subject (or room, or base station): every modality at its
    own rate."""

    streams: Mapping[Modality, Stream]
    target: int | Stream  # one class throughout, classes over time (steps,), or values (steps, k)
    subject: int
    scene: int = 0
    session: int = 0
    trial: int = 0
    name: str = ""  # the file it comes from

    @property
    def seconds(self) -> float:
        """From the beginning to the end of the longest stream, or of the target where it ends
        first."""
        longest = max(stream.end for stream in self.streams.values())
        return min(longest, self.target.end) if isinstance(self.target, Stream) else longest


@dataclass(frozen=True)
class Dataset:
    """Recordings, read one after the other, and what is known of all of them beforehand."""

    recordings: Iterable[Recording]
    task: Task
    labels: tuple[str, ...] = ()  # names of the classes
    units: Mapping[Modality, str] = field(default_factory=dict)  # "g", "m/s2", "rad/s", "bpm", ...


# Of a step: how far a time stamp may lie before the place it is meant for. Seconds since 1970 are
# rounded to 2.4e-7, which is more than a millionth of a step from 5 Hz on.
ROUNDED = 1e-3
GRID_BYTES = 40  # of a step and channel, while a grid is filled: five arrays of float64


def on_grid(times: Array, values: Array, rate: float, longest_gap: float) -> Stream:
    """Samples taken at uneven `times` (seconds, ascending) as a steady stream from time 0.

    Values between two samples are interpolated; where these lie more than `longest_gap` seconds
    apart, nothing was sensed and the values are NaN.
    """
    if len(times) < 2 or np.diff(times).min() < 0:
        raise CommunisError("time stamps must be two or more and must not go back")
    steps = times[-1] * rate + ROUNDED
    size = GRID_BYTES * (1 + values.shape[1]) * steps
    room("time stamps", size, f"a steady grid of {times[-1]:g} s at {rate:g} Hz")
    grid = np.arange(int(np.floor(steps)) + 1) / rate
    after = np.clip(np.searchsorted(times, grid), 1, len(times) - 1)
    step = times[after] - times[after - 1]
    share = np.divide(grid - times[after - 1], step, out=np.zeros_like(grid), where=step > 0)
    share = np.clip(share, 0, 1)[:, None]
    before, behind = values[after - 1], values[after]
    found = (1 - share) * before + share * behind
    found = np.where(share == 0, before, np.where(share == 1, behind, found))  # 0 times NaN is NaN
    nearest = np.minimum(np.abs(grid - times[after - 1]), np.abs(grid - times[after]))
    far = nearest > 0.5 / rate
    found[far & ((step > longest_gap) | (grid < times[0]))] = np.nan
    return Stream(found.astype(np.float32), rate)
