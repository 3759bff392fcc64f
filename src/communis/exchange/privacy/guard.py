"""The guard: how a client clips and noises its message before it sends it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from communis.core.errors import CommunisError
from communis.exchange.privacy import gaussian
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.privacy.spending import Spending

Flat = Mapping[str, Tensor]  # a message as flat named arrays: `field/path` or `field`
ABOVE = 1 + 1e-9  # the noise exceeds the least by this factor, so that rounding cannot make the sum
# of the rounds' costs exceed the budget


@dataclass(frozen=True)
class Block:
    """How one field of a message is protected."""

    clip: float  # C: bound on its length
    sigma: float  # standard deviation of the noise on every number


@dataclass(frozen=True)
class Guard:
    """Clips every covered field, taken as one vector, to its C and adds Gaussian noise.

    The change of a field is clipped: the difference from the tensor that the client received under
    the same name, or the value itself if it received none.
    """

    blocks: Mapping[str, Block]  # by field; other fields are sent as they are
    kappa: float = 1.0  # noise outside the method's subspace over noise inside it
    spending: Spending = field(default_factory=Spending)

    def mu(self, round: int) -> float:
        """The cost of a round under mu-GDP, if a client's data are replaced by any other: two
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
        """Returns the protected message and the share of its covered fields that were clipped.

        subspace: by path, an orthonormal basis (rows, r) of the directions with less noise.
        """
        sent = dict(up)
        clipped = 0
        factor = 1 / math.sqrt(self.spending.weight(round))
        for name, block in self.blocks.items():
            keys = [key for key in up if key.partition("/")[0] == name]
            keys = [key for key in keys if up[key].is_floating_point()]
            changes = {key: change_of(key, up, down) for key in keys}
            change, was_clipped = clip(changes, block.clip)
            clipped += was_clipped
            for key, value in change.items():
                basis = subspace.get(key.partition("/")[2])
                noise = self._noise(value, basis, block.sigma * factor, generator)
                reference = received(key, up[key], down)
                exact = value.double() + noise
                if reference is not None:
                    exact = exact + reference
                sent[key] = rounded(exact, up[key])
        return sent, clipped / max(1, len(self.blocks))

    def _noise(
        self, like: Tensor, basis: Tensor | None, sigma: float, generator: np.random.Generator
    ) -> Tensor:
        """P Z + kappa (1 - P) Z, with the projection P onto the basis. The two parts of a Gaussian
        Z are independent of each other."""
        z = normal(like, generator) * sigma
        if basis is None or self.kappa == 1:
            return z
        basis = torch.linalg.qr(basis.double())[0]  # the sender may have stretched the basis
        inside = basis @ (basis.T @ z)
        return z * self.kappa + inside * (1 - self.kappa)


def guard_of(
    settings: PrivacyConfig, covered: Sequence[str], rounds: int, share: float
) -> Guard | None:
    """Returns the guard of all clients, or None if clients add no noise or send no covered field.

    covered: the fields of the message that get noise; share: the share of the clients in a round.
    """
    if settings.mode in ("none", "central") or not covered:
        return None
    unknown = sorted(settings.clips.keys() - set(covered))
    if unknown:
        raise CommunisError(
            f"clips.{unknown[0]}: the message has no such field; it has {', '.join(covered)}"
        )
    clips = {name: settings.clips.get(name, settings.clip) for name in covered}
    if settings.mode == "paper":  # sensitivity C, not 2 C, and the textbook's calibration
        ratio = settings.noise
        if not ratio:
            ratio = gaussian.classical_sigma(1.0, settings.epsilon, settings.delta)
        blocks = {name: Block(clip, ratio * clip) for name, clip in clips.items()}
        return Guard(blocks, settings.kappa)
    ratio = settings.noise
    if not ratio:  # mu_total^2 = rounds mu^2
        times = settings.times(rounds, share)
        ratio = math.sqrt(times) / gaussian.mu_of(settings.epsilon, settings.delta) * ABOVE
    parts = math.sqrt(len(covered))  # mu^2 = sum_b (2 C_b / sigma_b)^2, in equal parts
    blocks = {name: Block(clip, ratio * 2 * clip * parts) for name, clip in clips.items()}
    kappa = settings.kappa if settings.mechanism == "subspace" else 1.0
    return Guard(blocks, kappa, settings.spending(rounds))


def received(key: str, value: Tensor, down: Flat) -> Tensor | None:
    """The tensor that the client received under the same name, if it is a floating-point tensor of
    the same shape."""
    there = down.get(key)
    same = there is not None and there.shape == value.shape and there.is_floating_point()
    return there if same else None


def change_of(key: str, up: Flat, down: Flat) -> Tensor:
    reference = received(key, up[key], down)
    return up[key] if reference is None else up[key] - reference


def clip(change: Flat, bound: float) -> tuple[dict[str, Tensor], bool]:
    """Scales the change, taken as one vector, to at most the bound; returns it with whether it was
    longer. A change that is not finite becomes zero: to refuse it would reveal something."""
    length = math.sqrt(sum(float(t.double().square().sum()) for t in change.values()))
    if not math.isfinite(length):
        return {key: torch.zeros_like(t) for key, t in change.items()}, True
    scale = min(1.0, bound / length) if length else 1.0
    return {key: t * scale for key, t in change.items()}, length > bound


def normal(like: Tensor, generator: np.random.Generator) -> Tensor:
    """Standard normal numbers in the shape of a tensor. They have double precision: the gaps
    between numbers of lower precision reveal the value to which they are added."""
    drawn = generator.standard_normal(tuple(like.shape))
    return torch.as_tensor(drawn, dtype=torch.float64, device=like.device)


def rounded(exact: Tensor, like: Tensor) -> Tensor:
    """Rounds to single precision, once, after the noise was added; then casts to the message's
    type."""
    return exact.float().to(like)
