"""Uncertainty as temperature: one head per modality that predicts classes and an uncertainty.

The equations are FedDUET's Equations 3 and 4. Names follow that paper: z_m are logits, s_m =
log sigma_m^2, a_m is availability. Division by sigma_m keeps the order of the logits and changes
how flat their softmax is.
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

S_MAX = 4.0  # bound of |s_m|, as the loss does not bound it
EPSILON = 1e-6
HIDDEN = (64, 32)  # hidden units of a head


class UncertaintyHead(MLP):
    """U_m: its outputs are the logits and, at the end, the log-variance."""

    def __init__(self, features: int, outputs: int) -> None:
        super().__init__((features, *HIDDEN, outputs + 1))
        self.out = LastAtZero(HIDDEN[-1], outputs + 1)


class LastAtZero(nn.Linear):
    """A linear layer whose last output is initially zero, so that sigma = 1."""

    def reset_parameters(self) -> None:
        super().reset_parameters()
        with torch.no_grad():
            self.weight[-1].zero_()
            self.bias[-1].zero_()


def add_heads(model: Model, task: Task) -> None:
    """Adds a head for every modality. The heads are computed as one batched product, so all
    features need the same size."""
    size = requirements.one_size(model.feature_sizes.values(), "uncertainty as temperature")
    for m in model.feature_sizes:
        model.unimodal[m] = UncertaintyHead(size, task.outputs)


@dataclass(frozen=True)
class Unimodal:
    """The outputs of the heads of M modalities for B windows. Outputs of absent modalities have no
    meaning."""

    z: Tensor  # (M, B, classes)
    s: Tensor  # (M, B), not clamped
    a: Tensor  # (M, B) bool

    @property
    def log_variance(self) -> Tensor:
        """log sigma_m^2: s_m clamped to its bounds."""
        return self.s.clamp(-S_MAX, S_MAX)

    @property
    def tempered(self) -> Tensor:
        """z_m / sigma_m."""
        return self.z * torch.exp(-self.log_variance / 2)[..., None]


def unimodal(model: Model, output: Output, present: Mapping[Modality, Tensor]) -> Unimodal:
    """Returns the outputs of all heads. The same layer of all heads is one batched product, as the
    heads are many and small."""
    names = list(output.features)
    heads = [cast(MLP, model.unimodal[m]).layers for m in names]
    x = torch.stack([output.features[m] for m in names])
    for i, layers in enumerate(zip(*heads, strict=True)):
        if i:
            x = F.relu(x)
        weight = torch.stack([layer.weight for layer in layers])
        bias = torch.stack([layer.bias for layer in layers])
        x = torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))
    a = torch.stack([present[m] for m in names])
    return Unimodal(z=x[..., :-1], s=x[..., -1], a=a)


def losses(heads: Unimodal, y: Tensor, penalty: float = 0.0) -> Tensor:
    """Returns the sum over modalities of L_UT,m = CE(z_m / sigma_m, y) (Equation 3), each the mean
    over the windows that have m. penalty: weight of s_m^2, which is not clamped."""
    z = heads.tempered.flatten(0, 1)
    cross_entropy = F.cross_entropy(z, y.repeat(len(heads.z)), reduction="none")
    per_window = cross_entropy.view_as(heads.s) + penalty * heads.s.square()
    return ((heads.a * per_window).sum(1) / heads.a.sum(1).clamp_min(1)).sum()


def fused(heads: Unimodal) -> Tensor:
    """Returns sigma_f (B,) = (sum_m a_m / (sigma_m^2 + epsilon))^(-1/2) (Equation 4), and for a
    window without sensors e^(S_MAX / 2), the largest sigma_m."""
    precision = (heads.a / (heads.log_variance.exp() + EPSILON)).sum(0)
    return torch.where(heads.a.any(0), precision, math.exp(-S_MAX)).rsqrt()


def clamped(heads: Unimodal) -> Tensor:
    """Returns the share (B,) of a window's sensors whose s_m is at a bound."""
    return (heads.a & (heads.s.abs() >= S_MAX)).sum(0) / heads.a.sum(0).clamp_min(1)
