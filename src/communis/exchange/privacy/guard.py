"""Guards: what a client does to its message before it leaves the device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

Flat = Mapping[str, Tensor]  # a message as flat named arrays: `field/path` or `field`


@dataclass(frozen=True)
class Spending:
    """Which share of the budget a round may have, 1 on average."""

    rounds: int = 0  # over which the share grows from 0.5 to 1.5; 0: all rounds have the same

    def weight(self, round: int) -> float:
        """Of mu^2: the noise is divided by its root."""
        return min(1.5, 0.5 + (round - 0.5) / self.rounds) if self.rounds else 1.0


@dataclass(frozen=True)
class Block:
    """How one field of a message is protected."""

    clip: float  # C: its length at most
    sigma: float  # standard deviation of the noise on every number


@dataclass(frozen=True)
class Guard:
    """Clips every covered field, taken as one vector, to its C and adds Gaussian noise.

    What is clipped is the change: the difference from what the client received under the same name,
    or the value itself where there was none.
    """

    blocks: Mapping[str, Block]  # by field; the others leave as they are
    kappa: float = 1.0  # noise outside the method's subspace, as a multiple of that inside
    spending: Spending = field(default_factory=Spending)

    def mu(self, round: int) -> float:
        """What a round costs under mu-GDP if a client's data are replaced by any other: two
        messages are at most 2 C apart, and the direction with the least noise decides."""
        least = min(1.0, self.kappa)
        squares = [(2 * b.clip / (b.sigma * least)) ** 2 for b in self.blocks.values()]
        return math.sqrt(sum(squares) * self.spending.weight(round))

    def protect(
        self,
        up: Flat,
        down: Flat,
        subspace: Flat,
        round: int,
        generator: np.random.Generator,
    ) -> tuple[dict[str, Tensor], float]:
        """The message as it leaves, and the share of its covered fields that were clipped.
        subspace: by path, an orthonormal basis (rows, r) of the directions to spare."""
        sent, clipped = dict(up), 0
        factor = 1 / math.sqrt(self.spending.weight(round))
        for name, block in self.blocks.items():
            keys = [key for key in up if key.partition("/")[0] == name]
            keys = [key for key in keys if up[key].is_floating_point()]
            change, shrunk = clip({key: change_of(key, up, down) for key in keys}, block.clip)
            clipped += shrunk
            for key, value in change.items():
                basis = subspace.get(key.partition("/")[2])
                noise = self._noise(value, basis, block.sigma * factor, generator)
                reference = received(key, up[key], down)
                exact = value.double() + noise
                sent[key] = rounded(exact if reference is None else exact + reference, up[key])
        return sent, clipped / max(1, len(self.blocks))

    def _noise(
        self, like: Tensor, basis: Tensor | None, sigma: float, generator: np.random.Generator
    ) -> Tensor:
        """P Z + kappa (1 - P) Z: both parts of one Gaussian are independent of each other."""
        z = normal(like, generator) * sigma
        if basis is None or self.kappa == 1:
            return z
        basis = torch.linalg.qr(basis.double())[0]  # whoever sent it may have stretched it
        inside = basis @ (basis.T @ z)
        return z * self.kappa + inside * (1 - self.kappa)


def received(key: str, value: Tensor, down: Flat) -> Tensor | None:
    """What the client got under the same name, if it is the same kind of thing."""
    there = down.get(key)
    same = there is not None and there.shape == value.shape and there.is_floating_point()
    return there if same else None


def change_of(key: str, up: Flat, down: Flat) -> Tensor:
    reference = received(key, up[key], down)
    return up[key] if reference is None else up[key] - reference


def clip(change: Flat, bound: float) -> tuple[dict[str, Tensor], bool]:
    """The change, no longer than the bound if taken as one vector, and whether it was longer. One
    that is not finite is no change at all: refusing it would give something away."""
    length = math.sqrt(sum(float(t.double().square().sum()) for t in change.values()))
    if not math.isfinite(length):
        return {key: torch.zeros_like(t) for key, t in change.items()}, True
    scale = min(1.0, bound / length) if length else 1.0
    return {key: t * scale for key, t in change.items()}, length > bound


def normal(like: Tensor, generator: np.random.Generator) -> Tensor:
    """Standard normal numbers in the shape of a tensor, in double precision: shorter ones leave
    gaps that tell what they were added to."""
    drawn = generator.standard_normal(tuple(like.shape))
    return torch.as_tensor(drawn, dtype=torch.float64, device=like.device)


def rounded(exact: Tensor, like: Tensor) -> Tensor:
    """To single precision, once, after the noise; then as the message has it."""
    return exact.float().to(like)
