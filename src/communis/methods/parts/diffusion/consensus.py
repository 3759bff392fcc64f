"""A consensus of clients' points by a diffusion model of their density (UMEDA, Section 3.3).

A single sample of the density, as in the paper, is not a consensus: it is as far from the centre as
a client. Therefore there are three samplers:

* `sample_mean`: the mean of samples of the reverse equation. One sample is the paper's consensus.
* `denoise_mean`: the denoised mean of the clients, which follows the probability flow towards a
  mode.
* `kernel`: a mode of the clients' points with a Gaussian around each. Its score has a closed form,
  the minimiser of the network's loss at that noise. Nothing is trained.

The last two samplers seek a mode and ignore small groups of clients, whether attackers or a
minority.

The network's output is the score itself or preconditioned (score.py). The raw output
(`score_output = "raw"`) is the paper's: coordinates are not scaled, and all clients have equal
weight. A few hundred training steps are not enough to learn it, so its samples end far outside of
the clients' cloud. The preconditioned output uses coordinates of unit variance around the mean and
weights clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor

from communis.core.errors import CommunisError
from communis.core.state import State
from communis.methods.parts.diffusion import score
from communis.methods.parts.diffusion.ve import Schedule, probability_flow, reverse_samples

Sampler = Literal["sample_mean", "denoise_mean", "kernel"]
ScoreOutput = Literal["preconditioned", "raw"]
ROUNDING = 1e-12  # relative; larger than the rounding errors of double precision
KERNEL_STEPS = 20  # steps of `kernel_mode`


@dataclass(frozen=True)
class Consensus:
    """The consensus of one round."""

    value: Tensor  # (D,)
    psi: State  # the score network, for the next round
    fallback: str = ""  # why the value is the mean; empty: it is the sampler's result
    distance: float = 0.0  # of the sampler's result from the mean, relative to that of the farthest
    # client; 0: there was no result, or it was not finite


@dataclass(frozen=True)
class Diffusion:
    """The computation of the consensus. The paper states sigma_min, sigma_max, reverse_steps and
    score_width. One sample and the raw output are our reading of its text."""

    sampler: Sampler = "denoise_mean"
    samples: int = 64  # number of samples of sample_mean
    sigma_min: float = 0.01  # noise at t = 0
    sigma_max: float = 50.0  # noise at t = 1
    sigma_start: float = 4.0  # noise at the start of denoise_mean
    reverse_steps: int = 50  # N_rev, number of steps back to t = 0
    trust_region: float = 1.0  # largest distance of the consensus from the mean, relative to that
    # of the farthest client; beyond it the mean is taken; 0: no limit
    least_clients: int = 8  # with fewer clients the mean is taken
    score_output: ScoreOutput = "preconditioned"
    score_width: int = 512  # units of both hidden layers
    score_steps: int = 400  # training steps of a new network
    score_steps_warm: int = 100  # training steps of the last round's network
    score_batch: int = 128  # points per training step
    score_lr: float = 3e-3  # learning rate of Adam
    score_decay: bool = True  # the learning rate decreases to zero
    score_keep: float = 0.5  # factor on the parameters of the last round's network before it is
    # trained; with 1 the network overfits to the points within a few rounds; 0: a new network

    def __post_init__(self) -> None:
        for name, kinds in {"sampler": Sampler, "score_output": ScoreOutput}.items():
            if getattr(self, name) not in get_args(kinds):
                options = ", ".join(map(repr, get_args(kinds)))
                raise CommunisError(f"{name} must be one of {options}, got {getattr(self, name)!r}")
        if not 0 < self.sigma_min < self.sigma_max < math.inf:
            raise CommunisError(
                f"needs 0 < sigma_min < sigma_max, got {self.sigma_min} and {self.sigma_max}"
            )
        uses_start = self.sampler == "denoise_mean"  # the other samplers do not use sigma_start
        if uses_start and not self.sigma_min < self.sigma_start <= self.sigma_max:
            raise CommunisError(
                "needs sigma_min < sigma_start <= sigma_max, got "
                f"{self.sigma_min}, {self.sigma_start} and {self.sigma_max}"
            )
        for name in ("samples", "reverse_steps", "least_clients", "score_width", "score_batch"):
            if getattr(self, name) < 1:
                raise CommunisError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("score_steps", "score_steps_warm", "trust_region"):
            if not getattr(self, name) >= 0:
                raise CommunisError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 < self.score_lr < math.inf:
            raise CommunisError(f"score_lr must be positive and finite, got {self.score_lr}")
        if not 0 <= self.score_keep <= 1:
            raise CommunisError(f"score_keep must be in [0, 1], got {self.score_keep}")

    def __call__(
        self, points: Tensor, weights: Tensor, psi: State, generator: torch.Generator
    ) -> Consensus:
        """Returns the consensus of points (n, D) with weights (n,). psi: the last round's network,
        or empty.

        The consensus is the mean if there are few points, if all points are equal, if the sampler's
        result is not finite, or if it lies outside of the trust region.
        """
        if not bool(torch.isfinite(points).all()) or not bool(torch.isfinite(weights).all()):
            raise ValueError("points and weights must be finite")
        if bool((weights < 0).any()) or not bool((weights > 0).any()):
            raise ValueError("weights must not be negative, nor all zero")
        cloud = points[weights > 0].double().cpu()
        w = weights[weights > 0].double().cpu()
        mean, _ = _moments(cloud, w)
        if len(cloud) < self.least_clients:
            return Consensus(mean.to(points), psi, "few clients")
        if _same(cloud):
            return Consensus(mean.to(points), psi, "no spread")
        result, psi = self._sampled(cloud, w, psi, generator)
        value = result.to(points)
        if not bool(torch.isfinite(value).all()):
            return Consensus(mean.to(points), State(), "not finite")
        radius = (cloud - mean).norm(dim=1).max()
        distance = float((result - mean).norm() / radius)
        if self.trust_region and distance > self.trust_region * (1 + ROUNDING):
            return Consensus(mean.to(points), psi, "outside the trust region", distance)
        return Consensus(value, psi, distance=distance)

    def _sampled(
        self, cloud: Tensor, w: Tensor, psi: State, generator: torch.Generator
    ) -> tuple[Tensor, State]:
        """Returns the sampler's result and the score network."""
        if self.sampler == "kernel":
            return kernel_mode(cloud, w), psi
        mean, spread = _moments(cloud, w)
        if self.score_output == "raw":
            value, psi = self._diffused(cloud.float(), torch.ones_like(w), mean, psi, generator)
            return value.double(), psi
        unit = ((cloud - mean) / spread).float()
        value, psi = self._diffused(unit, w, torch.zeros_like(mean), psi, generator)
        return mean + spread * value.double(), psi

    def _diffused(
        self, cloud: Tensor, w: Tensor, mean: Tensor, psi: State, generator: torch.Generator
    ) -> tuple[Tensor, State]:
        """Returns the result of a sampler with a score network, in the coordinates of the cloud,
        and the trained network."""
        psi = self._trained(psi, cloud, w, generator)
        schedule = self._schedule
        if self.score_output == "preconditioned":
            s = partial(score.score, psi, schedule)
        else:
            s = partial(score.output, psi)
        if self.sampler == "denoise_mean":
            start = schedule.time(self.sigma_start)
            x = mean.float()[None]
            return probability_flow(x, s, schedule, start, self.reverse_steps)[0], psi
        x = self.sigma_max * torch.randn(self.samples, cloud.shape[1], generator=generator)
        return reverse_samples(x, s, schedule, self.reverse_steps, generator).mean(0), psi

    def _trained(self, psi: State, cloud: Tensor, w: Tensor, generator: torch.Generator) -> State:
        """Returns the trained score network. It starts from psi, or from a new network if psi has
        another size or score_keep is 0."""
        dim = cloud.shape[1]
        raw = self.score_output == "raw"
        if self.score_keep and score.fits(psi, dim, self.score_width):
            psi = psi * self.score_keep
            steps = self.score_steps_warm
        else:
            psi = score.start(dim, generator, self.score_width, silent=not raw)
            steps = self.score_steps
        loss = score.literal_loss if raw else score.uniform_loss
        training = score.Training(loss, steps, self.score_lr, self.score_batch, self.score_decay)
        return score.trained(psi, training, self._schedule, cloud, w, generator)

    @property
    def _schedule(self) -> Schedule:
        return Schedule(self.sigma_min, self.sigma_max)


def kernel_mode(points: Tensor, weights: Tensor) -> Tensor:
    """Returns a mode (D,) of the density of points (n, D), smoothed by noise of half their median
    distance. The search starts at the weighted mean; every step moves to the expected origin of the
    present position."""
    distances = torch.pdist(points)
    noise = distances[distances > 0].median() / 2  # positive even if most points are equal
    y, _ = _moments(points, weights)
    for _ in range(KERNEL_STEPS):
        nearness = -(points - y).square().sum(1) / (2 * noise.square())
        y = (weights.log() + nearness).softmax(0) @ points
    return y


def _moments(points: Tensor, weights: Tensor) -> tuple[Tensor, float]:
    """Returns the weighted mean (D,) and the root mean square deviation of a coordinate from it."""
    share = weights / weights.sum()
    mean = share @ points
    return mean, float((share @ (points - mean).square()).mean().sqrt())


def _same(points: Tensor) -> bool:
    """Returns whether all points (n, D) are equal up to rounding."""
    differs = points.max(0).values - points.min(0).values
    return bool((differs <= ROUNDING * points.abs().max(0).values).all())
