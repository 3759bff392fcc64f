"""Diff-GNO: how the operators theta_M of clients become one (UMEDA, Algorithm 1, lines 4 and 10 to
12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from communis.diffusion import operators as ops
from communis.diffusion.consensus import Diffusion, Sampler
from communis.robust.median import GeometricMedian
from communis.state import State

ConsensusName = Literal[
    "diffusion", "kernel", "spectral_mean", "geometric_median", "topr_average", "fedavg"
]
LearnedSampler = Literal["denoise_mean", "sample_mean", "paper"]
MEANS = ("spectral_mean", "topr_average")


@dataclass(frozen=True)
class Known:
    """What a server knows of operators."""

    theta: State = field(default_factory=State)  # theta_M of every layer
    u: State = field(default_factory=State)  # U_g, by layer
    v: State = field(default_factory=State)  # W_g
    drift: State = field(default_factory=State)  # moving average of clients' changes of theta_M
    psi: State = field(default_factory=State)  # the score network
    seed: int = 0
    round: int = 0  # how many are over
    captured: float = -1.0  # share of the last updates' energy that their cores hold, if known
    fallback: bool = False  # the mean was taken instead of the consensus


@dataclass(frozen=True)
class Agreement:
    """Settings as in methods/umeda.py."""

    rank: int
    consensus: ConsensusName
    sampler: LearnedSampler
    basis: Literal["momentum", "theta"]
    beta: float
    warmup: int
    residual: bool  # the mean of what is outside of the block is added
    align: bool
    eta: float

    def start(self, theta: State, seed: int) -> Known:
        u, v = ops.bases(theta, self.rank) if self.consensus != "fedavg" else (State(), State())
        return Known(theta, u, v, theta.zeros(), seed=seed)

    def moved(self, known: Known, changes: Sequence[State], n: Tensor) -> Known:
        """After changes of theta_M from clients that weigh n."""
        cores = [ops.cores(change, known.u, known.v) for change in changes]
        known = replace(known, captured=ops.captured(cores, changes))
        mean = ops.mean(changes, n)
        if known.round < self.warmup:
            return self._stepped(replace(known, fallback=False), mean, mean)
        step, known = self._met(known, cores, n)
        if self.residual:
            step = step + (mean - ops.lifted(ops.mean(cores, n), known.u, known.v))
        return self._stepped(known, step, mean)

    def moved_by_cores(self, known: Known, cores: Sequence[State], n: Tensor) -> Known:
        """The same where clients sent nothing but the cores of their changes. The block stays: what
        is outside of it cannot become known."""
        step, known = self._met(known, cores, n)
        moved = self._stepped(known, step, step)
        return replace(moved, u=known.u, v=known.v, psi=known.psi)

    def _met(self, known: Known, cores: Sequence[State], n: Tensor) -> tuple[State, Known]:
        """Where the clients' cores meet, as a change of theta_M."""
        if self.consensus in MEANS:
            return ops.lifted(ops.mean(cores, n), known.u, known.v), known
        points = torch.stack([ops.point(core) for core in cores])  # (clients, D)
        value, known = self._agreed(known, points, n.to(points))
        return ops.lifted(ops.unpacked(value, cores[0]), known.u, known.v), known

    def _agreed(self, known: Known, points: Tensor, weights: Tensor) -> tuple[Tensor, Known]:
        if self.consensus == "geometric_median":
            return GeometricMedian()(points[:, None], weights[:, None])[0], known
        kind: Sampler = "kernel" if self.consensus == "kernel" else self.sampler
        number = int(np.random.default_rng([known.seed, known.round]).integers(2**63 - 1))
        found = Diffusion(kind)(points, weights, known.psi, torch.Generator().manual_seed(number))
        return found.value, replace(known, psi=found.psi, fallback=bool(found.fallback))

    def _stepped(self, known: Known, step: State, mean: State) -> Known:
        """The next round's operators and bases. mean: of whole changes, so that directions outside
        of the block can enter it even where the step drops them."""
        theta, drift = known.theta + step * self.eta, known.drift * self.beta + mean
        last = (known.u, known.v) if self.align else (State(), State())
        u, v = ops.bases(theta if self.basis == "theta" else drift, self.rank, last)
        psi = known.psi if self.align else State()  # in other coordinates it would mean nothing
        return replace(known, theta=theta, drift=drift, u=u, v=v, psi=psi, round=known.round + 1)


def noted(known: Known) -> Mapping[str, float]:
    """What is worth writing down after a round."""
    rank = ops.effective_rank(known.theta)
    found = {"fallback": float(known.fallback), "rank": rank}
    found |= {"captured": known.captured} if known.captured >= 0 else {}
    return {f"umeda/{name}": value for name, value in found.items()}
