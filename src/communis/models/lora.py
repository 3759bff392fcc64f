"""Low-rank adapters: a frozen weight W and a trained product B A beside it. B starts at zero, so an
adapted network starts as the frozen one."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.core.streams import Streams
from communis.models.fusion import Fusion

RANK = 8  # of all adapters


class LoRALinear(nn.Module):
    """y = W x + b + (alpha / rank) B A x, with W and b of `base`, frozen.

    Computed with the sum of both weights: with many tokens of few features one large product takes
    about two thirds of the time of a large and two thin ones, and is the same function.
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
        """The one weight that does the same."""
        return self.weight + self.scale * (self.lora_B @ self.lora_A)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.merged(), self.bias)


class LoRABlocks(Fusion):
    """A frozen linear layer W_0 on the concatenated features with an adapter that is split by
    modality: sum_m W_m h_m + B sum_m A_m h_m, then ReLU.

    So `fusion.blocks.<modality>.lora_A` belongs to a modality as a block of `Blocks` does, and
    `fusion.shared.lora_B` to all of them.
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
        fused = sum(whole for whole, _ in pairs) + self.shared(sum(low for _, low in pairs))
        return fused, F.relu(fused)


class _Down(nn.Module):
    """A modality's block of W_0 and of A. The frozen one starts by the modality's name alone: no
    seed or client may differ in what never travels."""

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
    """The same values as a parameter that is never trained and never travels."""
    return nn.Parameter(tensor.detach(), requires_grad=False)


def start(matrix: Tensor) -> None:
    """As torch initialises a linear layer."""
    nn.init.kaiming_uniform_(matrix, a=math.sqrt(5))
