"""Samples: one split of one client's windows as tensors, ready to be gathered into batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from communis.core import Batch, Modality


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
