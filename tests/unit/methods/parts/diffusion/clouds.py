"""Clouds of clients' points whose centre is known."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from communis.core.state import State
from communis.core.streams import Streams
from communis.methods.parts.diffusion.consensus import Consensus, Diffusion

CLIP, LENGTH = 1.0, 0.5  # of every update at most; of the one that is sought


def generator(seed: int = 0, name: str = "diffusion") -> torch.Generator:
    return torch.Generator().manual_seed(Streams(seed).number(name))


def noise(draw: torch.Generator, n: int, dim: int, length: float) -> Tensor:
    """n vectors of about that length."""
    return torch.randn(n, dim, generator=draw) * length / math.sqrt(dim)


def direction(draw: torch.Generator, dim: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(dim, generator=draw), dim=0)


def gauss(seed: int, dim: int = 256, n: int = 40) -> tuple[Tensor, Tensor]:
    """One cloud, and its centre."""
    draw = generator(seed, "gauss")
    centre = LENGTH * direction(draw, dim)
    return centre + noise(draw, n, dim, LENGTH), centre


def two(seed: int, dim: int = 256) -> tuple[Tensor, Tensor]:
    """28 clients here and 12 there; the centre of the 28."""
    draw = generator(seed, "two")
    major, minor = (LENGTH * direction(draw, dim) for _ in range(2))
    parts = [major + noise(draw, 28, dim, 0.15), minor + noise(draw, 12, dim, 0.15)]
    return torch.cat(parts), major


def outliers(seed: int, dim: int = 256) -> tuple[Tensor, Tensor]:
    """34 honest clients and 6 that pull the other way as hard as they may."""
    draw = generator(seed, "outliers")
    centre = LENGTH * direction(draw, dim)
    liars = (-CLIP / LENGTH * centre).expand(6, dim)
    return torch.cat([centre + noise(draw, 34, dim, 0.2), liars]), centre


def noisy(seed: int, dim: int = 256) -> tuple[Tensor, Tensor]:
    """The one cloud under the Gaussian mechanism with epsilon = 2, delta = 1e-5."""
    points, centre = gauss(seed, dim)
    sigma = CLIP * math.sqrt(2 * math.log(1.25e5)) / 2
    return points + sigma * torch.randn(points.shape, generator=generator(seed, "noisy")), centre


def error(value: Tensor, centre: Tensor) -> float:
    return float((value - centre).norm() / centre.norm())


def met(
    points: Tensor,
    how: Diffusion,
    seed: int = 0,
    weights: Tensor | None = None,
    psi: State | None = None,
) -> Consensus:
    """The consensus of clients that weigh the same."""
    w = torch.ones(len(points)) if weights is None else weights
    return how(points, w, psi or State(), generator(seed))


def against_mean(cloud: tuple[Tensor, Tensor], how: Diffusion, seed: int = 0) -> float:
    """The consensus's error as a multiple of the mean's."""
    points, centre = cloud
    found = met(points, how, seed)
    assert found.fallback == ""
    return error(found.value, centre) / error(points.mean(0), centre)
