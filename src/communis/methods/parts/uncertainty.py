"""Uncertainty as temperature: per-modality heads that predict classes and how sure they are.

After FedDUET, Equations 3 and 4. Names follow that paper: z_m logits, s_m = log sigma_m^2, a_m
availability. Dividing logits by sigma leaves their order alone and sets how flat they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.core import requirements
from communis.core.contract import Modality, Model, Output, Task
from communis.models.network import MLP

S_MAX = 4.0  # bounds of s_m, which nothing in the loss holds
EPSILON = 1e-6
HIDDEN = (64, 32)  # of a head


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
    """Adds a head for every modality. They are computed together, so features need one size."""
    size = requirements.one_size(model.feature_sizes.values(), "uncertainty as temperature")
    for m in model.feature_sizes:
        model.unimodal[m] = UncertaintyHead(size, task.outputs)


@dataclass(frozen=True)
class Unimodal:
    """What the heads of M modalities say of B windows; without meaning where one is absent."""

    z: Tensor  # (M, B, classes)
    s: Tensor  # (M, B), as the heads say it
    a: Tensor  # (M, B) bool

    @property
    def log_variance(self) -> Tensor:
        """s_m within its bounds: log sigma_m^2."""
        return self.s.clamp(-S_MAX, S_MAX)

    @property
    def tempered(self) -> Tensor:
        """z_m / sigma_m."""
        return self.z * torch.exp(-self.log_variance / 2)[..., None]


def unimodal(model: Model, output: Output, present: Mapping[Modality, Tensor]) -> Unimodal:
    """The same layer of all heads as one batched product: they are many and small."""
    names = list(output.features)
    heads = [cast(MLP, model.unimodal[m]).layers for m in names]
    x = torch.stack([output.features[m] for m in names])
    for i, layers in enumerate(zip(*heads, strict=True)):
        weight = torch.stack([layer.weight for layer in layers])
        bias = torch.stack([layer.bias for layer in layers])
        x = torch.baddbmm(bias[:, None], F.relu(x) if i else x, weight.transpose(1, 2))
    return Unimodal(x[..., :-1], x[..., -1], torch.stack([present[m] for m in names]))


def losses(said: Unimodal, y: Tensor, penalty: float = 0.0) -> Tensor:
    """Sum over modalities of L_UT,m = CE(z_m / sigma_m, y), Equation 3, each the mean over the
    windows that have m; with a penalty on s_m^2 if there is one, also beyond the bounds."""
    each = F.cross_entropy(said.tempered.flatten(0, 1), y.repeat(len(said.z)), reduction="none")
    each = each.view_as(said.s) + penalty * said.s.square()
    return ((said.a * each).sum(1) / said.a.sum(1).clamp_min(1)).sum()


def fused(said: Unimodal) -> Tensor:
    """(B,) sigma_f = (sum_m a_m / (sigma_m^2 + epsilon))^(-1/2), Equation 4; the largest sigma_m,
    e^(S_MAX / 2), where there is no sensor at all."""
    precision = (said.a / (said.log_variance.exp() + EPSILON)).sum(0)
    return torch.where(said.a.any(0), precision, math.exp(-S_MAX)).rsqrt()


def clamped(said: Unimodal) -> Tensor:
    """(B,) the share of a window's sensors whose s_m is at a bound."""
    return (said.a & (said.s.abs() >= S_MAX)).sum(0) / said.a.sum(0).clamp_min(1)
