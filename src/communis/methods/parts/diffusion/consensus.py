"""A consensus of clients' points by a diffusion that learns their density (UMEDA, Section 3.3).

A sample of the density, as the paper has it, is not a consensus: it is as far from the centre as a
client is. So there are three samplers:

* `sample_mean`: the mean of samples, drawn by the reverse equation; with one sample it is the
  paper's.
* `denoise_mean`: the clients' mean, denoised: from there down the probability flow, towards the
  mode.
* `kernel`: the score in closed form, that of the clients' points with a Gaussian around each: what
  the network's loss is least for at that noise. Nothing is trained.

The last two seek a mode. They ignore what few clients say, liars or a minority.

The network's output is the score itself (`score_output = "raw"`, the paper's: in coordinates as
they are, all clients alike) or preconditioned, in coordinates of unit variance around the mean,
clients by weight (diffusion/score.py). The raw one is not learned in 500 steps: its samples end far
outside of the cloud.
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
from communis.methods.parts.diffusion.ve import Schedule, drawn_back, flowed_back

Sampler = Literal["sample_mean", "denoise_mean", "kernel"]
ScoreOutput = Literal["preconditioned", "raw"]
ROUNDING = 1e-12  # relative: double precision is off by less, on every processor
KERNEL_STEPS = 20


@dataclass(frozen=True)
class Consensus:
    value: Tensor  # (D,)
    psi: State  # the score network, for the next round
    fallback: str = ""  # why the value is the mean; empty: it is not
    distance: float = 0.0  # of what was found from the mean, in radii of the clients' cloud; 0:
    # nothing was found, or it was not finite


@dataclass(frozen=True)
class Diffusion:
    """How the consensus is found. The paper gives sigma_min, sigma_max, reverse_steps and
    score_width; that it takes one sample and the raw output is how it reads."""

    sampler: Sampler = "denoise_mean"
    samples: int = 64  # of sample_mean
    sigma_min: float = 0.01  # noise at t = 0
    sigma_max: float = 50.0  # noise at t = 1
    sigma_start: float = 4.0  # noise where denoise_mean starts
    reverse_steps: int = 50  # N_rev, back to t = 0
    trust_region: float = 1.0  # radius, in radii of the cloud; the mean is taken if what was found
    # lies outside; 0: wherever it lies
    least_clients: int = 8  # fewer have no density: the mean is taken
    score_output: ScoreOutput = "preconditioned"
    score_width: int = 512  # of both hidden layers
    score_steps: int = 400  # training steps of a new network
    score_steps_warm: int = 100  # training steps of one that is known
    score_batch: int = 128
    score_lr: float = 3e-3  # of Adam
    score_decay: bool = True  # the learning rate falls to zero
    score_keep: float = 0.5  # a known network's parameters are shrunk to this first; with 1 it
    # learns points by heart, up to 2.6 times the mean's error within five rounds; 0: it starts anew

    def __post_init__(self) -> None:
        for name, kinds in {"sampler": Sampler, "score_output": ScoreOutput}.items():
            if getattr(self, name) not in get_args(kinds):
                there = ", ".join(get_args(kinds))
                raise CommunisError(f"no {name} {getattr(self, name)!r}; there are {there}")
        if not 0 < self.sigma_min < self.sigma_max < math.inf:
            found = f"{self.sigma_min}, {self.sigma_max}"
            raise CommunisError(f"needs 0 < sigma_min < sigma_max, got {found}")
        starts = self.sampler == "denoise_mean"  # the others start from the largest noise
        if starts and not self.sigma_min < self.sigma_start <= self.sigma_max:
            found = f"{self.sigma_min}, {self.sigma_start}, {self.sigma_max}"
            raise CommunisError(f"needs sigma_min < sigma_start <= sigma_max, got {found}")
        positive = ("samples", "reverse_steps", "least_clients", "score_width", "score_batch")
        for name in positive:
            if getattr(self, name) < 1:
                raise CommunisError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("score_steps", "score_steps_warm", "trust_region"):
            if not getattr(self, name) >= 0:
                raise CommunisError(f"{name} must not be negative, got {getattr(self, name)}")
        if not 0 < self.score_lr < math.inf:
            raise CommunisError(f"score_lr must be positive, got {self.score_lr}")
        if not 0 <= self.score_keep <= 1:
            raise CommunisError(f"score_keep is a share in [0, 1], got {self.score_keep}")

    def __call__(
        self, points: Tensor, weights: Tensor, psi: State, generator: torch.Generator
    ) -> Consensus:
        """The consensus of points (n, D) that weigh (n,). psi: the last round's, or empty.

        It is the mean if there are few points, if they do not differ, if what was found is not
        finite, or if it lies outside of the trust region.
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
        found, psi = self._found(cloud, w, psi, generator)
        value = found.to(points)
        if not bool(torch.isfinite(value).all()):
            return Consensus(mean.to(points), State(), "not finite")
        radius = (cloud - mean).norm(dim=1).max()
        distance = float((found - mean).norm() / radius)
        if self.trust_region and distance > self.trust_region * (1 + ROUNDING):
            return Consensus(mean.to(points), psi, "outside the trust region", distance)
        return Consensus(value, psi, distance=distance)

    def _found(
        self, cloud: Tensor, w: Tensor, psi: State, generator: torch.Generator
    ) -> tuple[Tensor, State]:
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
        """Where the sampler ends, in the coordinates of the cloud, and the network it followed."""
        psi = self._learned(psi, cloud, w, generator)
        schedule = self._schedule
        follow = partial(score.output, psi)
        if self.score_output == "preconditioned":
            follow = partial(score.score, psi, schedule)
        if self.sampler == "denoise_mean":
            x, at = mean.float()[None], schedule.time(self.sigma_start)
            return flowed_back(x, follow, schedule, at, self.reverse_steps)[0], psi
        x = self.sigma_max * torch.randn(self.samples, cloud.shape[1], generator=generator)
        return drawn_back(x, follow, schedule, self.reverse_steps, generator).mean(0), psi

    def _learned(self, psi: State, cloud: Tensor, w: Tensor, generator: torch.Generator) -> State:
        """A network that does not fit, or of which nothing is kept, starts anew."""
        dim = cloud.shape[1]
        raw = self.score_output == "raw"
        if self.score_keep and score.fits(psi, dim, self.score_width):
            psi, steps = psi * self.score_keep, self.score_steps_warm
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


def _same(points: Tensor) -> bool:
    """Whether points (n, D) are one point: no coordinate differs by more than rounding."""
    differs = points.max(0).values - points.min(0).values
    return bool((differs <= ROUNDING * points.abs().max(0).values).all())
