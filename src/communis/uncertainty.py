"""Uncertainty as temperature: per-modality heads that predict classes and how sure they are.

After FedDUET, Equations 3 and 4. Names follow that paper: z_m logits, s_m = log sigma_m^2, a_m
availability. Dividing logits by sigma leaves their order alone and sets how flat they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.core import Modality, Model, Task
from communis.models.network import MLP

S_MAX = 4.0  # s_m is kept within [-S_MAX, S_MAX]: nothing in the loss bounds it
EPSILON = 1e-6
HIDDEN = (64, 32)  # of a head
Unimodal = Mapping[Modality, tuple[Tensor, Tensor]]  # z_m (B, classes) and s_m (B,)


class UncertaintyHead(MLP):
    """U_m: logits and, as the last output, the log-variance."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__((features, *HIDDEN, outputs + 1))
        self.out = LastAtZero(HIDDEN[-1], outputs + 1)


class LastAtZero(nn.Linear):
    """A linear layer whose last output starts at zero: sigma = 1."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.weight[-1].zero_()
            self.bias[-1].zero_()


def add_heads(model: Model, task: Task) -> None:
    for m, size in model.feature_sizes.items():
        model.unimodal[m] = UncertaintyHead(size, task.outputs)


def unimodal(model: Model, features: Mapping[Modality, Tensor]) -> Unimodal:
    """z_m and s_m of every modality; without meaning where it is absent."""
    found = {m: model.unimodal[m](h) for m, h in features.items()}
    return {m: (u[:, :-1], u[:, -1].clamp(-S_MAX, S_MAX)) for m, u in found.items()}


def losses(
    parts: Unimodal, present: Mapping[Modality, Tensor], y: Tensor, penalty: float = 0.0
) -> Tensor:
    """Sum over modalities of L_UT,m = CE(z_m / sigma_m, y), Equation 3, each the mean over the
    windows that have m; with a penalty on s_m^2 if there is one."""
    total = torch.zeros((), device=y.device)
    for m, (z, s) in parts.items():
        a = present[m].to(z.dtype)
        loss = F.cross_entropy(z * torch.exp(-s / 2)[:, None], y, reduction="none")
        if penalty:
            loss = loss + penalty * s.square()
        total = total + (a * loss).sum() / a.sum().clamp_min(1)
    return total


def fused(parts: Unimodal, present: Mapping[Modality, Tensor]) -> Tensor:
    """(B,) sigma_f = (sum_m a_m / (sigma_m^2 + epsilon))^(-1/2), Equation 4; the largest sigma_m,
    e^(S_MAX / 2), where there is no sensor at all."""
    a, s = _stacked(parts, present)
    precision = (a / (s.exp() + EPSILON)).sum(1)
    return torch.where(a.any(1), precision, math.exp(-S_MAX)).rsqrt()


def clamped(parts: Unimodal, present: Mapping[Modality, Tensor]) -> Tensor:
    """(B,) the share of a window's sensors whose s_m is at a bound."""
    a, s = _stacked(parts, present)
    return (a & (s.abs() >= S_MAX)).sum(1) / a.sum(1).clamp_min(1)


def _stacked(parts: Unimodal, present: Mapping[Modality, Tensor]) -> tuple[Tensor, Tensor]:
    """a_m and s_m, (B, modalities) both."""
    return torch.stack([present[m] for m in parts], 1), torch.stack(
        [s for _, s in parts.values()], 1
    )
