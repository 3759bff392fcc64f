"""Recording: what a dataset source reads from files, before windows are cut."""

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
    """Returns whether a model can have a part of this name: an identifier that is not the name of a
    method of torch modules."""
    return modality.isidentifier() and not hasattr(nn.ModuleDict(), modality)


@dataclass(frozen=True)
class Stream:
    """Values of one modality (or of the target) at a constant rate; NaN where nothing was sensed.

    The shape of the values depends on the kind:
        series  (steps, channels)
        csi     (packets, antennas, subcarriers)
        points  (frames, points, features), padded with NaN
        image   (frames, height, width)
    """

    values: Array
    rate: float  # Hz
    start: float = 0.0  # seconds after the beginning of the recording
    kind: Kind = "series"

    @property
    def end(self) -> float:
        return self.start + len(self.values) / self.rate


@dataclass(frozen=True)
class Recording:
    """One uninterrupted recording of one subject (or room, or base station): every modality at its
    own rate."""

    streams: Mapping[Modality, Stream]
    target: int | Stream  # one class for all, classes over time (steps,), or values (steps, k)
    subject: int
    scene: int = 0
    session: int = 0
    trial: int = 0
    name: str = ""  # the file that it comes from
    names: Mapping[str, str] = field(default_factory=dict)  # own names of "subject" and "scene"

    @property
    def seconds(self) -> float:
        """The time from the beginning to the end of the longest stream, or to the end of the target
        if that is earlier."""
        longest = max(stream.end for stream in self.streams.values())
        return min(longest, self.target.end) if isinstance(self.target, Stream) else longest


@dataclass(frozen=True)
class Dataset:
    """Recordings, which are read one after the other, and facts that hold for all of them."""

    recordings: Iterable[Recording]
    task: Task
    labels: tuple[str, ...] = ()  # names of the classes
    units: Mapping[Modality, str] = field(default_factory=dict)  # "g", "m/s2", "rad/s", "bpm", ...


# Share of a step by which a time stamp may precede its position on the grid. Seconds since 1970 are
# rounded to 2.4e-7, which exceeds a millionth of a step at rates above 5 Hz.
ROUNDED = 1e-3
GRID_BYTES = 40  # per step and channel, while a grid is filled: five arrays of float64


def on_grid(times: Array, values: Array, rate: float, longest_gap: float) -> Stream:
    """Returns samples taken at irregular `times` (seconds, ascending) as a stream at a constant
    rate that begins at time 0.

    Values between two samples are interpolated. If the two samples are more than `longest_gap`
    seconds apart, nothing was sensed between them and the values are NaN.
    """
    if len(times) < 2 or np.diff(times).min() < 0:
        raise CommunisError(
            "time stamps are not usable: expected at least two, in ascending order; sort the rows"
        )
    steps = times[-1] * rate + ROUNDED
    size = GRID_BYTES * (1 + values.shape[1]) * steps
    room("time stamps", size, f"a regular grid of {times[-1]:g} s at {rate:g} Hz")
    grid = np.arange(int(np.floor(steps)) + 1) / rate
    right = np.clip(np.searchsorted(times, grid), 1, len(times) - 1)
    left = right - 1
    step = times[right] - times[left]
    share = np.divide(grid - times[left], step, out=np.zeros_like(grid), where=step > 0)
    share = np.clip(share, 0, 1)[:, None]
    interpolated = (1 - share) * values[left] + share * values[right]
    # The formula gives NaN where a neighbour of weight 0 is NaN: 0 times NaN is NaN.
    interpolated = np.where(share == 1, values[right], interpolated)
    interpolated = np.where(share == 0, values[left], interpolated)
    nearest = np.minimum(np.abs(grid - times[left]), np.abs(grid - times[right]))
    far = nearest > 0.5 / rate
    in_gap = (step > longest_gap) | (grid < times[0])
    interpolated[far & in_gap] = np.nan
    return Stream(interpolated.astype(np.float32), rate)
