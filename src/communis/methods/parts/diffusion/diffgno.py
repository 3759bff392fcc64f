"""Diff-GNO: how the operators theta_M of clients become one (UMEDA, Algorithm 1, lines 4 and 10 to
12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from communis.core.reductions.median import GeometricMedian
from communis.core.state import State
from communis.methods.parts.diffusion import operators as ops
from communis.methods.parts.diffusion.consensus import Diffusion

ConsensusName = Literal[
    "diffusion", "kernel", "spectral_mean", "geometric_median", "topr_average", "fedavg"
]
BasisName = Literal["momentum", "theta", "fixed"]
MEANS = ("spectral_mean", "topr_average")


@dataclass(frozen=True)
class OperatorState:
    """What a server knows of operators."""

    theta: State = field(default_factory=State)  # theta_M of every layer
    u: State = field(default_factory=State)  # U_g, by layer
    v: State = field(default_factory=State)  # W_g
    drift: State = field(default_factory=State)  # moving average of clients' changes of theta_M
    psi: State = field(default_factory=State)  # the score network
    seed: int = 0
    round: int = 0  # how many are over
    captured: float = -1.0  # share of the last updates' energy that their cores hold, if known
    fallback: bool = False  # the mean was taken instead of the last consensus
    used: bool = False  # the last consensus was taken
    not_finite: bool = False  # the last consensus was not: one reason for the mean
    distance: float = 0.0  # of the last consensus from the mean, in radii of the clients' cloud,
    # taken or not; 0: there was none, or it was not finite
    noised: bool = False  # clients noise what they send


@dataclass(frozen=True)
class DiffGNO:
    """Settings as in methods/umeda.py."""

    rank: int
    consensus: ConsensusName
    diffusion: Diffusion
    basis: BasisName
    beta: float
    warmup: int
    residual: bool  # the mean of what is outside of the block is added
    align: bool
    eta: float

    def start(self, theta: State, seed: int, noised: bool) -> OperatorState:
        u, v = ops.bases(theta, self.rank) if self.consensus != "fedavg" else (State(), State())
        return OperatorState(theta, u, v, theta.zeros(), seed=seed, noised=noised)

    def moved(self, known: OperatorState, changes: Sequence[State], n: Tensor) -> OperatorState:
        """After changes of theta_M from clients that weigh n."""
        cores = [ops.cores(change, known.u, known.v) for change in changes]
        known = replace(known, captured=ops.captured(cores, changes))
        mean = ops.mean(changes, n)
        known = replace(known, fallback=False, used=False, not_finite=False, distance=0.0)
        if known.round < self.warmup:
            return self._stepped(known, mean, mean)
        step, known = self._met(known, cores, n)
        if self.residual:
            step = step + (mean - ops.lifted(ops.mean(cores, n), known.u, known.v))
        return self._stepped(known, step, mean)

    def moved_by_cores(
        self, known: OperatorState, cores: Sequence[State], n: Tensor
    ) -> OperatorState:
        """The same where clients sent nothing but the cores of their changes. What is outside of
        the block cannot become known: it has to be fixed."""
        step, known = self._met(known, cores, n)
        return self._stepped(known, step, step)

    def _met(
        self, known: OperatorState, cores: Sequence[State], n: Tensor
    ) -> tuple[State, OperatorState]:
        """Where the clients' cores meet, as a change of theta_M."""
        if self.consensus in MEANS:
            mean = ops.mean(cores, n)
            return ops.lifted(mean, known.u, known.v), replace(known, used=True)
        points = torch.stack([ops.point(core) for core in cores])  # (clients, D)
        value, known = self._agreed(known, points, n.to(points))
        return ops.lifted(ops.unpacked(value, cores[0]), known.u, known.v), known

    def _agreed(
        self, known: OperatorState, points: Tensor, weights: Tensor
    ) -> tuple[Tensor, OperatorState]:
        if self.consensus == "geometric_median":
            value = GeometricMedian()(points[:, None], weights[:, None])[0]
            return value, replace(known, used=True)
        number = int(np.random.default_rng([known.seed, known.round]).integers(2**63 - 1))
        found = self.diffusion(points, weights, known.psi, torch.Generator().manual_seed(number))
        return found.value, replace(
            known,
            psi=found.psi,
            fallback=bool(found.fallback),
            used=not found.fallback,
            not_finite=found.fallback == "not finite",
            distance=found.distance,
        )

    def _stepped(self, known: OperatorState, step: State, mean: State) -> OperatorState:
        """The next round's operators and bases. mean: of whole changes, so that directions outside
        of the block can enter it even where the step drops them."""
        theta = known.theta + step * self.eta
        drift = known.drift * self.beta + mean
        moved = replace(known, theta=theta, drift=drift, round=known.round + 1)
        if self.basis == "fixed":
            return moved
        last = (known.u, known.v) if self.align else (State(), State())
        u, v = ops.bases(theta if self.basis == "theta" else drift, self.rank, last)
        return replace(moved, u=u, v=v)


def noted(known: OperatorState) -> Mapping[str, float]:
    """What is worth writing down after a round."""
    found = {
        "fallback": float(known.fallback),
        "used": float(known.used),
        "not_finite": float(known.not_finite),
        "rank": ops.effective_rank(known.theta),
    }
    if known.captured >= 0:
        found["captured"] = known.captured
    if known.distance > 0:
        found["distance"] = known.distance
    return {f"umeda/{name}": value for name, value in found.items()}
