"""The score network: a network with two hidden layers on a point and its time, as functions of a
State.

In the literal reading its output is the score. This is hard to learn over all noise levels, because
the score grows as the noise decreases. With preconditioning, as in Karras et al. (NeurIPS 2022) for
points of unit variance, input and target have unit variance at all times.
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
LAYERS = 3  # two hidden layers and the output layer

Loss = Callable[[State, Schedule, Tensor, Tensor, Tensor], Tensor]


def start(dim: int, generator: torch.Generator, width: int = 512, silent: bool = True) -> State:
    """Returns a new network for points (B, dim). silent: its output is zero."""
    psi = {}
    for layer, (rows, columns) in enumerate(_shapes(dim, width)):
        bound = 1 / math.sqrt(columns)
        if silent and layer == LAYERS - 1:
            bound = 0.0
        drawn = (torch.rand(rows, columns + 1, generator=generator) * 2 - 1) * bound
        psi[f"{layer}.weight"] = drawn[:, 1:].clone()
        psi[f"{layer}.bias"] = drawn[:, 0].clone()
    return State(psi)


def fits(psi: State, dim: int, width: int = 512) -> bool:
    """Returns whether psi is a network for points of this size."""
    expected: dict[str, tuple[int, ...]] = {}
    for layer, shape in enumerate(_shapes(dim, width)):
        expected |= {f"{layer}.weight": shape, f"{layer}.bias": shape[:1]}
    return {path: tuple(tensor.shape) for path, tensor in psi.items()} == expected


def output(psi: State, x: Tensor, t: Tensor) -> Tensor:
    """Returns the output (B, dim) of the network for points x (B, dim) at times t (B,)."""
    h = torch.cat([x, embedding(t, TIMES)], 1)
    for layer in range(LAYERS):
        if layer:
            h = F.silu(h)
        h = F.linear(h, psi[f"{layer}.weight"], psi[f"{layer}.bias"])
    return h


def denoised(psi: State, schedule: Schedule, x: Tensor, t: Tensor) -> Tensor:
    """Returns the expected origin of noisy points x, with preconditioning."""
    sigma = schedule.sigma(t)[:, None]
    c = 1 / (1 + sigma.square())
    return c * x + sigma * c.sqrt() * output(psi, c.sqrt() * x, t)


def score(psi: State, schedule: Schedule, x: Tensor, t: Tensor) -> Tensor:
    """Returns the preconditioned score."""
    return (denoised(psi, schedule, x, t) - x) / schedule.sigma(t)[:, None].square()


def literal_loss(psi: State, schedule: Schedule, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    """Returns the loss of denoising score matching without weights (UMEDA, Equation 12)."""
    sigma = schedule.sigma(t)[:, None]
    return (output(psi, x0 + sigma * noise, t) + noise / sigma).square().sum(1).mean()


def uniform_loss(psi: State, schedule: Schedule, x0: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    """Returns the loss of denoising score matching of the preconditioned score, with weights that
    make it the squared error of the network's output at all times."""
    sigma = schedule.sigma(t)[:, None]
    c = 1 / (1 + sigma.square())
    x = x0 + sigma * noise
    target = (x0 - c * x) / (sigma * c.sqrt())
    return (output(psi, c.sqrt() * x, t) - target).square().mean()


@dataclass(frozen=True)
class Training:
    """The settings of training."""

    loss: Loss
    steps: int
    lr: float
    batch: int  # points per step
    settle: bool  # the learning rate decreases to zero, along half a cosine

    def rate(self, step: int) -> float:
        """Returns the learning rate of a step."""
        factor = (1 + math.cos(math.pi * step / self.steps)) / 2
        return self.lr * factor if self.settle else self.lr


def trained(
    psi: State,
    training: Training,
    schedule: Schedule,
    points: Tensor,
    weights: Tensor,
    generator: torch.Generator,
) -> State:
    """Returns the network after training with Adam. Every step draws points by weight, with
    replacement, at random times."""
    network = psi.map(lambda tensor: tensor.clone().requires_grad_())
    params = list(network.values())
    first = [torch.zeros_like(p) for p in params]
    second = [torch.zeros_like(p) for p in params]
    count = [torch.zeros(()) for _ in params]
    for step in range(training.steps):
        rows = torch.multinomial(weights, training.batch, replacement=True, generator=generator)
        t = torch.rand(training.batch, generator=generator)
        noise = torch.randn(training.batch, points.shape[1], generator=generator)
        loss = training.loss(network, schedule, points[rows], t, noise)
        gradients = list(torch.autograd.grad(loss, params))
        with torch.no_grad():
            torch._foreach_add_(count, 1)
            torch._fused_adam_(  # one fused operation is faster than several
                params,
                gradients,
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
    return network.map(torch.Tensor.detach)


def _shapes(dim: int, width: int) -> list[tuple[int, int]]:
    """Returns the shapes of the weights of all layers."""
    return [(width, dim + TIMES), (width, width), (dim, width)]
