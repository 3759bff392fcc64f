"""The score network: two layers of hidden units on a point and its time, as functions of a State.

Literally, its output is the score. On clouds of all sizes of noise that cannot be learned: the
score is 1e4 times as steep where noise is least. Preconditioned, as Karras et al. (NeurIPS 2022)
do it for points of unit variance, input and target have unit variance at all times.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from communis.core.state import State
from communis.methods.parts.diffusion.ve import Schedule, embedding

TIMES = 64  # size of the embedding of t
LAYERS = 3  # the last one gives the output

Loss = Callable[[State, Schedule, Tensor, Tensor, Tensor], Tensor]


def start(dim: int, generator: torch.Generator, width: int = 512, silent: bool = True) -> State:
    """A fresh network for points (B, dim); silent: its output is zero."""
    psi = {}
    for layer, (rows, columns) in enumerate(_shapes(dim, width)):
        drawn = torch.rand(rows, columns + 1, generator=generator) * 2 - 1
        drawn = drawn * (0.0 if silent and layer == LAYERS - 1 else 1 / math.sqrt(columns))
        psi[f"{layer}.weight"], psi[f"{layer}.bias"] = drawn[:, 1:].clone(), drawn[:, 0].clone()
    return State(psi)


def fits(psi: State, dim: int, width: int = 512) -> bool:
    """Whether it is a network for points of that size."""
    expected: dict[str, tuple[int, ...]] = {}
    for layer, shape in enumerate(_shapes(dim, width)):
        expected |= {f"{layer}.weight": shape, f"{layer}.bias": shape[:1]}
    return {path: tuple(tensor.shape) for path, tensor in psi.items()} == expected


def output(psi: State, x: Tensor, t: Tensor) -> Tensor:
    h = torch.cat([x, embedding(t, TIMES)], 1)
    for layer in range(LAYERS):
        h = F.linear(F.silu(h) if layer else h, psi[f"{layer}.weight"], psi[f"{layer}.bias"])
    return h


def denoised(psi: State, schedule: Schedule, x: Tensor, t: Tensor) -> Tensor:
    """The expected origin of noisy points x, preconditioned."""
    sigma = schedule.sigma(t)[:, None]
    c = 1 / (1 + sigma.square())
    return c * x + sigma * c.sqrt() * output(psi, c.sqrt() * x, t)


def score(psi: State, schedule: Schedule, x: Tensor, t: Tensor) -> Tensor:
    """The preconditioned score."""
    return (denoised(psi, schedule, x, t) - x) / schedule.sigma(t)[:, None].square()


def literal_loss(psi: State, schedule: Schedule, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    """Denoising score matching without weights (UMEDA, Equation 12)."""
    sigma = schedule.sigma(t)[:, None]
    return (output(psi, x0 + sigma * noise, t) + noise / sigma).square().sum(1).mean()


def uniform_loss(psi: State, schedule: Schedule, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    """The same of the preconditioned score, weighted such that the network's own error counts alike
    at all times."""
    sigma = schedule.sigma(t)[:, None]
    c = 1 / (1 + sigma.square())
    x = x0 + sigma * noise
    return (output(psi, c.sqrt() * x, t) - (x0 - c * x) / (sigma * c.sqrt())).square().mean()


@dataclass(frozen=True)
class Training:
    loss: Loss
    steps: int
    lr: float
    batch: int
    settle: bool  # the learning rate falls to zero, along half a cosine

    def rate(self, step: int) -> float:
        falling = (1 + math.cos(math.pi * step / self.steps)) / 2
        return self.lr * falling if self.settle else self.lr


def trained(
    psi: State,
    training: Training,
    schedule: Schedule,
    points: Tensor,
    weights: Tensor,
    generator: torch.Generator,
) -> State:
    """After steps of Adam, each on points drawn anew by weight, at random times."""
    moving = psi.map(lambda tensor: tensor.clone().requires_grad_())
    params = list(moving.values())
    first, second = ([torch.zeros_like(p) for p in params] for _ in range(2))
    count = [torch.zeros(()) for _ in params]
    for step in range(training.steps):
        rows = torch.multinomial(weights, training.batch, replacement=True, generator=generator)
        t = torch.rand(training.batch, generator=generator)
        noise = torch.randn(training.batch, points.shape[1], generator=generator)
        loss = training.loss(moving, schedule, points[rows], t, noise)
        slopes = list(torch.autograd.grad(loss, params))
        with torch.no_grad():  # in one operation, which takes a tenth of the time of several
            torch._foreach_add_(count, 1)
            torch._fused_adam_(
                params,
                slopes,
                first,
                second,
                [],
                count,
                lr=training.rate(step),
                beta1=0.9,
                beta2=0.999,
                weight_decay=0.0,
                eps=1e-8,
                amsgrad=False,
                maximize=False,
            )
    return moving.map(torch.Tensor.detach)


def _shapes(dim: int, width: int) -> list[tuple[int, int]]:
    return [(width, dim + TIMES), (width, width), (dim, width)]
