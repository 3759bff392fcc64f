"""Samples: one split of the windows of one client as tensors, from which batches are gathered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from communis.core.arrays import Array
from communis.core.contract import Batch, Modality
from communis.core.tasks import CONSTANT


@dataclass(frozen=True)
class TensorSamples:
    """Windows are stored channels-last, which is the layout of the fast encoders; batches show them
    channels-first."""

    inputs: Mapping[Modality, Tensor]  # (n, ..., channels), zero where absent
    present: Mapping[Modality, Tensor]  # (n,) bool
    target: Tensor

    def __len__(self) -> int:
        return len(self.target)

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in [*self.inputs.values(), self.target])

    @cached_property
    def missing(self) -> Mapping[Modality, int]:
        """The number of windows that lack each modality, without modalities that none lacks."""
        lacking = {m: int((~present).sum()) for m, present in self.present.items()}
        return {m: windows for m, windows in lacking.items() if windows}

    def to(self, device: torch.device) -> TensorSamples:
        return TensorSamples(
            {m: x.to(device) for m, x in self.inputs.items()},
            {m: p.to(device) for m, p in self.present.items()},
            self.target.to(device),
        )

    def at(self, rows: Array) -> TensorSamples:
        """Returns the samples at these rows, without a copy if these are all."""
        if len(rows) == len(self):
            return self
        chosen = torch.from_numpy(rows)
        return TensorSamples(
            {m: x[chosen] for m, x in self.inputs.items()},
            {m: p[chosen] for m, p in self.present.items()},
            self.target[chosen],
        )

    def batch(self, indices: Tensor) -> Batch:
        indices = indices.to(self.target.device)
        return Batch(
            {m: x.index_select(0, indices).movedim(-1, 1) for m, x in self.inputs.items()},
            {m: p.index_select(0, indices) for m, p in self.present.items()},
            self.target.index_select(0, indices),
        )


def joined(parts: Sequence[TensorSamples], like: Mapping[Modality, Tensor]) -> TensorSamples:
    """Concatenates samples. A part without a modality contributes zeros that are marked as absent;
    their shape is that in `like`."""

    def inputs(part: TensorSamples, m: Modality) -> Tensor:
        if m in part.inputs:
            return part.inputs[m]
        return like[m].new_zeros(len(part), *like[m].shape[1:])

    def present(part: TensorSamples, m: Modality) -> Tensor:
        if m in part.present:
            return part.present[m]
        return torch.zeros(len(part), dtype=torch.bool)

    return TensorSamples(
        {m: torch.cat([inputs(part, m) for part in parts]) for m in like},
        {m: torch.cat([present(part, m) for part in parts]) for m in like},
        torch.cat([part.target for part in parts]),
    )


@dataclass(frozen=True)
class Scale:
    """The mean and standard deviation of every channel, for z-scores."""

    mean: Array
    deviation: Array

    def apply(self, x: Array) -> Array:
        varies = self.deviation > CONSTANT * np.abs(self.mean)
        scale = np.where(varies, self.deviation, 1.0)  # constants are centred only
        return np.asarray((x - self.mean) / scale, np.float32)


def measured(x: Array) -> Scale | None:
    """Returns the scale of the finite values of windows (n, ..., channels); None if there are
    none."""
    if not x.size:
        return None
    over = tuple(range(x.ndim - 1))
    count = np.maximum((~np.isnan(x)).sum(over), 1)
    mean = np.nansum(x, over, dtype=np.float64) / count
    square = np.nansum(np.square(x - mean), over, dtype=np.float64) / count
    return Scale(mean, np.sqrt(square))


def summed(parts: Iterable[Array]) -> Scale | None:
    """Returns the scale of windows (n, channels, ...) that come in parts. It sums the squared
    deviations from the means of the parts (Chan et al. 1979): if the mean is large, the difference
    of two large sums of squares has no correct digit."""
    count, mean, square = 0.0, 0.0, 0.0
    for part in parts:
        x = np.moveaxis(np.asarray(part, np.float64), 1, -1)
        x = x.reshape(-1, x.shape[-1])
        known = np.isfinite(x)
        own = known.sum(0)
        centre = np.where(known, x, 0.0).sum(0) / np.maximum(own, 1)
        apart = centre - mean
        total = count + own
        share = own / np.maximum(total, 1)
        square = square + np.square(np.where(known, x - centre, 0.0)).sum(0)
        square = square + np.square(apart) * count * share
        mean = mean + apart * share
        count = total
    if not np.any(count):
        return None
    return Scale(np.asarray(mean), np.sqrt(square / np.maximum(count, 1)))


def finite(x: Array, present: Array) -> tuple[Array, Array]:
    """Returns a copy of windows (n, ..., channels) with NaN in place of infinite values, and which
    windows are present. A window without any finite value is not."""
    x = np.array(x, dtype=np.float32, order="C")
    with np.errstate(over="ignore", invalid="ignore"):
        suspect = not np.isfinite(x.sum())  # one sum is faster than testing every value
    if suspect:
        known = np.isfinite(x)
        present = present & known.any(tuple(range(1, x.ndim)))
        x[~known] = np.nan
    return x, np.array(present)


def filled(x: Array, present: Array) -> Array:
    """Replaces what was not sensed by zero."""
    x[~present] = 0
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(x.sum()):  # NaN and Inf survive a sum
            return x
    return np.nan_to_num(x, copy=False, nan=0.0)


def filled_cloud(x: Array, present: Array) -> Array:
    """Fills point clouds (n, points, features): the padding repeats the first point of each cloud
    and so adds no new point."""
    known = np.asarray(np.isfinite(x).all(2))
    first = x[np.arange(len(x)), known.argmax(1)]
    x = np.where(known[:, :, None], x, first[:, None])
    return filled(x, present)
