"""Samples: one split of one client's windows as tensors, ready to be gathered into batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from communis.core import Batch, Modality
from communis.data.recording import Array


@dataclass(frozen=True)
class TensorSamples:
    """Stored channels-last, so that a gathered batch already has the layout of the fast encoders;
    shown channels-first."""

    inputs: Mapping[Modality, Tensor]  # (n, ..., channels), zero where absent
    present: Mapping[Modality, Tensor]  # (n,) bool
    target: Tensor

    def __len__(self) -> int:
        return len(self.target)

    @property
    def nbytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in [*self.inputs.values(), self.target])

    def batch(self, indices: Tensor) -> Batch:
        indices = indices.to(self.target.device)
        return Batch(
            {m: x.index_select(0, indices).movedim(-1, 1) for m, x in self.inputs.items()},
            {m: p.index_select(0, indices) for m, p in self.present.items()},
            self.target.index_select(0, indices),
        )


def joined(parts: Sequence[TensorSamples], like: Mapping[Modality, Tensor]) -> TensorSamples:
    """All samples side by side; a part without a modality contributes zeros marked absent (shape
    from `like`)."""

    def inputs(part: TensorSamples, m: Modality) -> Tensor:
        return (
            part.inputs[m] if m in part.inputs else like[m].new_zeros(len(part), *like[m].shape[1:])
        )

    def present(part: TensorSamples, m: Modality) -> Tensor:
        return part.present[m] if m in part.present else torch.zeros(len(part), dtype=torch.bool)

    return TensorSamples(
        {m: torch.cat([inputs(part, m) for part in parts]) for m in like},
        {m: torch.cat([present(part, m) for part in parts]) for m in like},
        torch.cat([part.target for part in parts]),
    )


def prepared(x: Array, present: Array, train: Array, normalise: bool) -> tuple[Array, Array]:
    """Windows (n, ..., channels) finite and zero where absent, and which of them are present.

    normalise: z-scores per channel, from the training windows. A window without a single finite
    value is absent.
    """
    x = np.array(x, dtype=np.float32, order="C")
    with np.errstate(over="ignore", invalid="ignore"):
        suspect = not np.isfinite(x.sum())  # NaN and Inf survive a sum
    if suspect:
        finite = np.isfinite(x)
        present = present & finite.any(tuple(range(1, x.ndim)))
        x[~finite] = np.nan
    if normalise:
        known = x[train & present]
        if known.size:
            over = tuple(range(known.ndim - 1))
            count = np.maximum((~np.isnan(known)).sum(over), 1)
            mean = np.nansum(known, over, dtype=np.float64) / count
            square = np.nansum(np.square(known - mean), over, dtype=np.float64) / count
            deviation = np.sqrt(square)
            scale = np.where(deviation > 1e-6, deviation, 1.0)  # a constant is only centred
            x = ((x - mean) / scale).astype(np.float32)
    x[~present] = 0
    np.nan_to_num(x, copy=False, nan=0.0)
    return x, np.array(present)
