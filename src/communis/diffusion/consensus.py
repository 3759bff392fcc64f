"""A consensus of clients' points by a diffusion that learns their density (UMEDA, Section 3.3).

A sample of the density, as the paper has it, is not a consensus: it is as far from the centre as a
client is. So there are four samplers:

* `paper`: literally. One sample, score of the raw coordinates, no weights. After 500 steps of
  training it still ends far outside of the cloud.
* `sample_mean`: the mean of many samples, in normalised coordinates and preconditioned.
* `denoise_mean`: the mean, denoised: from there down the probability flow, towards the mode.
* `kernel`: the score in closed form, that of the clients' points with a Gaussian around each: what
  the network's loss is least for at that noise. Nothing is trained.

The last two seek a mode. They ignore what few clients say, liars or a minority.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from communis.core import CommunisError
from communis.diffusion import score
from communis.diffusion.ve import Schedule, drawn_back, flowed_back
from communis.state import State

Sampler = Literal["paper", "sample_mean", "denoise_mean", "kernel"]
FEWEST = 8  # points that have a density
FLAT = 1e-12  # a spread below this is none
KERNEL_STEPS = 20


@dataclass(frozen=True)
class Consensus:
    value: Tensor  # (D,)
    psi: State  # the score network, for the next round
    fallback: str = ""  # why the value is the mean; empty: it is not


@dataclass(frozen=True)
class Diffusion:
    """How the consensus is found; the numbers from `sigma_min` to `steps` are the paper's."""

    sampler: Sampler = "denoise_mean"
    sigma_min: float = 0.01
    sigma_max: float = 50.0
    steps: int = 50  # back to t = 0
    sigma_start: float = 4.0  # of denoise_mean, in units of the clients' spread
    samples: int = 64  # of sample_mean
    train_first: int = 0  # steps of a new network; 0: 400, paper 500
    train_later: int = 0  # steps of one that is known; 0: 100, paper 500
    lr: float = 0.0  # of Adam; 0: 3e-3 falling to zero, paper 1e-3
    keep: float = 0.5  # a known network's parameters are shrunk to this first, but not with paper;
    # with 1 it learns points by heart: up to 2.6 times the mean's error within five rounds
    batch: int = 128
    width: int = 512

    def __post_init__(self) -> None:
        if self.sampler not in get_args(Sampler):
            there = ", ".join(get_args(Sampler))
            raise CommunisError(f"no sampler {self.sampler!r}; there are {there}")
        if not 0 < self.sigma_min < self.sigma_start <= self.sigma_max < math.inf:
            found = f"{self.sigma_min}, {self.sigma_start}, {self.sigma_max}"
            raise CommunisError(f"needs 0 < sigma_min < sigma_start <= sigma_max, got {found}")
        for name in ("steps", "samples", "batch", "width"):
            if getattr(self, name) < 1:
                raise CommunisError(f"{name} must be positive, got {getattr(self, name)}")
        if not 0 < self.keep <= 1:
            raise CommunisError(f"keep is a share in (0, 1], got {self.keep}")
        for name in ("train_first", "train_later", "lr"):
            if getattr(self, name) < 0:
                raise CommunisError(f"{name} must not be negative, got {getattr(self, name)}")

    def __call__(
        self, points: Tensor, weights: Tensor, psi: State, generator: torch.Generator
    ) -> Consensus:
        """The consensus of points (n, D) that weigh (n,). psi: the last round's, or empty.

        It is the mean if there are few points, if they do not differ, or if what was found is
        farther from it than every point is.
        """
        if not bool(torch.isfinite(points).all()) or not bool(torch.isfinite(weights).all()):
            raise ValueError("points and weights must be finite")
        if bool((weights < 0).any()) or not bool((weights > 0).any()):
            raise ValueError("weights must not be negative, nor all zero")
        cloud, w = (part[weights > 0].double().cpu() for part in (points, weights))
        mean, spread = _moments(cloud, w)
        if len(cloud) < FEWEST:
            return Consensus(mean.to(points), psi, "few clients")
        if spread < FLAT:
            return Consensus(mean.to(points), psi, "no spread")
        value, psi = self._found(cloud, w, psi, generator)
        if not bool(torch.isfinite(value).all()):
            return Consensus(mean.to(points), State(), "not finite")
        if (value - mean).norm() > (cloud - mean).norm(dim=1).max():
            return Consensus(mean.to(points), psi, "outside the cloud")
        return Consensus(value.to(points), psi)

    def _found(
        self, cloud: Tensor, w: Tensor, psi: State, generator: torch.Generator
    ) -> tuple[Tensor, State]:
        if self.sampler == "kernel":
            return kernel_mode(cloud, w), psi
        if self.sampler == "paper":
            return self._literal(cloud.float(), psi, generator)
        mean, spread = _moments(cloud, w)
        value, psi = self._preconditioned(((cloud - mean) / spread).float(), w, psi, generator)
        return mean + spread * value.double(), psi

    def _literal(
        self, cloud: Tensor, psi: State, generator: torch.Generator
    ) -> tuple[Tensor, State]:
        psi = self._learned(psi, score.literal_loss, cloud, torch.ones(len(cloud)), generator)
        x = self.sigma_max * torch.randn(1, cloud.shape[1], generator=generator)
        follow = partial(score.output, psi)
        return drawn_back(x, follow, self._schedule, self.steps, generator)[0], psi

    def _preconditioned(
        self, cloud: Tensor, w: Tensor, psi: State, generator: torch.Generator
    ) -> tuple[Tensor, State]:
        """Of a cloud around 0 with coordinates of unit variance."""
        psi = self._learned(psi, score.uniform_loss, cloud, w, generator)
        follow = partial(score.score, psi, self._schedule)
        if self.sampler == "denoise_mean":
            x, at = torch.zeros(1, cloud.shape[1]), self._schedule.time(self.sigma_start)
            return flowed_back(x, follow, self._schedule, at, self.steps)[0], psi
        x = self.sigma_max * torch.randn(self.samples, cloud.shape[1], generator=generator)
        return drawn_back(x, follow, self._schedule, self.steps, generator).mean(0), psi

    def _learned(
        self, psi: State, loss: score.Loss, cloud: Tensor, w: Tensor, generator: torch.Generator
    ) -> State:
        """A network that does not fit starts anew."""
        literal, dim = self.sampler == "paper", cloud.shape[1]
        if score.fits(psi, dim, self.width):
            psi = psi if literal else psi * self.keep
            steps = self.train_later or (500 if literal else 100)
        else:
            psi = score.start(dim, generator, self.width, silent=not literal)
            steps = self.train_first or (500 if literal else 400)
        lr = self.lr or (1e-3 if literal else 3e-3)
        training = score.Training(loss, steps, lr, self.batch, settle=not literal)
        return score.trained(psi, training, self._schedule, cloud, w, generator)

    @property
    def _schedule(self) -> Schedule:
        return Schedule(self.sigma_min, self.sigma_max)


def kernel_mode(points: Tensor, weights: Tensor) -> Tensor:
    """(D,): from the weighted mean of points (n, D) uphill in their density, as seen through noise
    of half their median distance; every step goes to the expected origin of where it stands."""
    distances = torch.pdist(points)
    noise = distances[distances > 0].median() / 2  # even if most points are the same
    y, _ = _moments(points, weights)
    for _ in range(KERNEL_STEPS):
        nearness = -(points - y).square().sum(1) / (2 * noise.square())
        y = (weights.log() + nearness).softmax(0) @ points
    return y


def _moments(points: Tensor, weights: Tensor) -> tuple[Tensor, float]:
    """The weighted mean (D,), and the root mean square deviation of a coordinate from it."""
    share = weights / weights.sum()
    mean = share @ points
    return mean, float((share @ (points - mean).square()).mean().sqrt())
