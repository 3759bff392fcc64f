"""Fusion of per-modality features that does not depend on the values of a masked modality.

The weight is stored as one block per modality, so `fusion.blocks.<modality>.*` are ordinary paths:
a client without a modality does not own its block, and methods share or withhold blocks like any
other parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Fusion(nn.Module):
    """Maps the features and masks of a batch to (fused, embedding)."""

    open_to_any: ClassVar[bool]  # whether it also fuses modalities that it was not built for
    features: int  # size of the embedding

    def fresh(self, features: Mapping[str, int]) -> Fusion:
        """Returns a new fusion of the same kind, for encoders with features of these sizes."""
        raise NotImplementedError


class Blocks(Fusion):
    """A linear layer on the concatenated features, written as sum_m W_m h_m + b, then ReLU."""

    open_to_any = False  # a modality needs a block of its own

    def __init__(self, features: Mapping[str, int], width: int) -> None:
        super().__init__()
        self.features = width
        self.blocks = nn.ModuleDict(
            {m: nn.Linear(d, width, bias=False) for m, d in features.items()}
        )
        self.shared = Bias(width)

    def fresh(self, features: Mapping[str, int]) -> Fusion:
        return Blocks(features, self.features)

    def forward(
        self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        fused = self.shared(sum(self.blocks[m](h) for m, h in features.items()))
        return fused, F.relu(fused)


class Bias(nn.Module):
    """The part of the fusion layer that belongs to no modality. It starts at zero, independently of
    a client's sensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Mean(Fusion):
    """The mean of the features of the present sensors, which must have one size; no parameters. The
    features of a single sensor are unchanged; a sample without sensors gets zeros."""

    open_to_any = True

    def __init__(self, features: Mapping[str, int]) -> None:
        super().__init__()
        self.features = _one_size("mean", features)

    def fresh(self, features: Mapping[str, int]) -> Fusion:
        return Mean(features)

    def forward(
        self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        here = {m: present[m][:, None] for m in features}
        first, *others = (h.masked_fill(~here[m], 0.0) for m, h in features.items())
        total = sum(others, start=first)  # not from zero, which would turn -0 into 0
        fused = total / torch.stack(list(here.values())).sum(0).clamp_min(1)
        return fused, fused


class Attention(Fusion):
    """Masked multi-context attention: each context weighs the present modalities; contexts are
    concatenated.

    e_{c,m} = [W2 tanh(W1 h_m + b1) + b2]_c, minus infinity where absent; h = concat_c sum_m
    softmax_m(e_c)_m h_m. All modalities must have features of one size. A sample without any
    modality gets zeros.
    """

    open_to_any = True  # no parameter belongs to a modality

    def __init__(self, features: Mapping[str, int], contexts: int = 4, units: int = 128) -> None:
        super().__init__()
        size = _one_size("attention", features)
        self.features = contexts * size
        self.contexts, self.units = contexts, units
        self.shared = nn.ModuleDict(
            {"score1": nn.Linear(size, units), "score2": nn.Linear(units, contexts)}
        )

    def fresh(self, features: Mapping[str, int]) -> Fusion:
        return Attention(features, self.contexts, self.units)

    def weights(self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Tensor:
        """Returns (B, modalities, contexts): weights that sum to one over the present modalities,
        or are zero if there is none."""
        stacked = torch.stack(list(features.values()), 1)
        scores = self.shared["score2"](torch.tanh(self.shared["score1"](stacked)))
        mask = torch.stack([present[m] for m in features], 1)[..., None]
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        return torch.softmax(scores, 1) * mask

    def forward(
        self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        fused = torch.einsum(
            "bmc,bmd->bcd", self.weights(features, present), torch.stack(list(features.values()), 1)
        )
        return fused.flatten(1), fused.flatten(1)


def _one_size(fusion: str, features: Mapping[str, int]) -> int:
    sizes = set(features.values())
    if len(sizes) != 1:
        raise ValueError(
            f"{fusion} fusion needs features of one size, got {dict(features)}; "
            "use fusion = 'blocks'"
        )
    return sizes.pop()
