"""The variance-exploding diffusion: forwards x_t = x_0 + sigma(t) noise, and two ways back.

Backwards a score is followed, the slope of the log density: s(x (B, D), t (B,)) -> (B, D).
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
    """Noise grows geometrically in t, from `low` at 0 to `high` at 1 (UMEDA, Equations 14, 15).

    The paper's sigma(t)^2 as an integral of g^2 from 0 to t leaves out low^2; so small that it
    makes no difference.
    """

    low: float = 0.01
    high: float = 50.0

    @property
    def growth(self) -> float:
        return math.log(self.high / self.low)

    def sigma(self, t: Tensor) -> Tensor:
        return self.low * torch.exp(self.growth * t)

    def g(self, t: Tensor) -> Tensor:
        """g^2 is the slope of sigma^2."""
        return self.sigma(t) * math.sqrt(2 * self.growth)

    def time(self, sigma: float) -> float:
        """The t at which there is that much noise."""
        return math.log(sigma / self.low) / self.growth


def embedding(t: Tensor, size: int) -> Tensor:
    """(B, size): sines and cosines of t (B,), from one radian per unit of time to a thousand."""
    frequencies = torch.logspace(0, 3, size // 2, dtype=t.dtype, device=t.device)
    angles = t[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], 1)


def drawn_back(
    x: Tensor, score: Score, schedule: Schedule, steps: int, generator: torch.Generator
) -> Tensor:
    """Samples: the reverse equation from t = 1 to 0 (UMEDA, Equation 13), by Euler and Maruyama.
    Where it ends no noise is added."""
    dt = 1 / steps
    for i in range(steps):
        t = x.new_full((len(x),), 1 - i * dt)
        g = schedule.g(t)[:, None]
        x = x + g.square() * score(x, t) * dt
        if i < steps - 1:
            x = x + g * math.sqrt(dt) * torch.randn(x.shape, generator=generator)
    return x


def flowed_back(x: Tensor, score: Score, schedule: Schedule, start: float, steps: int) -> Tensor:
    """Without noise: the probability flow, which has the same densities at every time, from
    t = start to 0."""
    dt = start / steps
    for i in range(steps):
        t = x.new_full((len(x),), start - i * dt)
        x = x + schedule.g(t).square()[:, None] * score(x, t) * dt / 2
    return x
