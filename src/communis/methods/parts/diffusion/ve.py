"""The variance-exploding diffusion: forwards x_t = x_0 + sigma(t) noise, and two reverse processes.

The reverse processes follow a score, the gradient of the log density:
s(x (B, D), t (B,)) -> (B, D).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Score = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Schedule:
    """The noise schedule, which grows geometrically in t, from `low` at t = 0 to `high` at t = 1
    (UMEDA, Equations 14 and 15).

    The paper's sigma(t)^2 is an integral of g^2 from 0 to t and omits low^2, which is negligible.
    """

    low: float = 0.01
    high: float = 50.0

    @property
    def growth(self) -> float:
        """The derivative of log sigma with respect to t."""
        return math.log(self.high / self.low)

    def sigma(self, t: Tensor) -> Tensor:
        """Returns the standard deviation of the noise at times t."""
        return self.low * torch.exp(self.growth * t)

    def g(self, t: Tensor) -> Tensor:
        """Returns the diffusion coefficient at times t; g^2 is the derivative of sigma^2."""
        return self.sigma(t) * math.sqrt(2 * self.growth)

    def time(self, sigma: float) -> float:
        """Returns the time t at which the noise is sigma."""
        return math.log(sigma / self.low) / self.growth


def embedding(t: Tensor, size: int) -> Tensor:
    """Returns sines and cosines (B, size) of t (B,), with frequencies from 1 to 1000 radians per
    unit of time."""
    frequencies = torch.logspace(0, 3, size // 2, dtype=t.dtype, device=t.device)
    angles = t[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)


def reverse_samples(
    x: Tensor, score: Score, schedule: Schedule, steps: int, generator: torch.Generator
) -> Tensor:
    """Returns samples of the density: the reverse equation from t = 1 to 0 (UMEDA, Equation 13),
    integrated with Euler-Maruyama. The last step adds no noise."""
    dt = 1 / steps
    for i in range(steps):
        t = x.new_full((len(x),), 1 - i * dt)
        g = schedule.g(t)[:, None]
        x = x + g.square() * score(x, t) * dt
        if i < steps - 1:
            x = x + g * math.sqrt(dt) * torch.randn(x.shape, generator=generator)
    return x


def probability_flow(
    x: Tensor, score: Score, schedule: Schedule, start: float, steps: int
) -> Tensor:
    """Returns the points at t = 0 of the probability flow from x at t = start. The flow is
    deterministic and has the same densities as the reverse equation at all times."""
    dt = start / steps
    for i in range(steps):
        t = x.new_full((len(x),), start - i * dt)
        x = x + schedule.g(t).square()[:, None] * score(x, t) * dt / 2
    return x
