"""Low-rank adapters: a frozen weight W plus a trained product B A. B starts at zero, so an adapted
network initially equals the frozen one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.core.streams import Streams
from communis.models.fusion import Fusion

RANK = 8  # rank of all adapters


class LoRALinear(nn.Module):
    """y = W x + b + (alpha / rank) B A x, with W and b of `base`, frozen.

    It is computed with the sum of both weights, which is the same function: with many tokens of few
    features, one large product is faster than a large one and two thin ones.
    """

    def __init__(self, base: nn.Linear, rank: int = RANK, alpha: float | None = None) -> None:
        super().__init__()
        self.scale = 1.0 if alpha is None else alpha / rank
        self.weight = frozen(base.weight)
        self.bias = None if base.bias is None else frozen(base.bias)
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.empty(base.out_features, rank))

    def reset_parameters(self) -> None:
        start(self.lora_A)
        nn.init.zeros_(self.lora_B)

    def merged(self) -> Tensor:
        """Returns the single weight of the same function."""
        return self.weight + self.scale * (self.lora_B @ self.lora_A)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.merged(), self.bias)


class LoRABlocks(Fusion):
    """A frozen linear layer W_0 on the concatenated features with an adapter that is split by
    modality: sum_m W_m h_m + B sum_m A_m h_m, then ReLU.

    `fusion.blocks.<modality>.lora_A` belongs to a modality, like a block of `Blocks`, and
    `fusion.shared.lora_B` to all modalities.
    """

    open_to_any = False

    def __init__(self, features: Mapping[str, int], width: int, rank: int = RANK) -> None:
        super().__init__()
        self.features, self.rank = width, rank
        self.blocks = nn.ModuleDict({m: _Down(m, d, width, rank) for m, d in features.items()})
        self.shared = _Up(width, rank)

    def fresh(self, features: Mapping[str, int]) -> Fusion:
        return LoRABlocks(features, self.features, self.rank)

    def forward(
        self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        pairs = [self.blocks[m](h) for m, h in features.items()]
        frozen_sum = sum(full for full, _ in pairs)
        fused = frozen_sum + self.shared(sum(low for _, low in pairs))
        return fused, F.relu(fused)


class _Down(nn.Module):
    """A modality's block of W_0 and of A. The frozen block depends only on the name of the
    modality: it is never sent, so it must be the same for all seeds and clients."""

    def __init__(self, modality: str, features: int, width: int, rank: int) -> None:
        super().__init__()
        with Streams().torch(f"frozen/fusion.blocks.{modality}"):
            self.weight = frozen(nn.Linear(features, width, bias=False).weight)
        self.lora_A = nn.Parameter(torch.empty(rank, features))

    def reset_parameters(self) -> None:
        start(self.lora_A)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        return F.linear(h, self.weight), F.linear(h, self.lora_A)


class _Up(nn.Module):
    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.lora_B = nn.Parameter(torch.empty(width, rank))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.lora_B)

    def forward(self, low: Tensor) -> Tensor:
        return F.linear(low, self.lora_B)


def frozen(tensor: Tensor) -> nn.Parameter:
    """Returns the values as a parameter that is never trained and never sent."""
    return nn.Parameter(tensor.detach(), requires_grad=False)


def start(matrix: Tensor) -> None:
    """Initialises a matrix as torch initialises a linear layer."""
    nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))
