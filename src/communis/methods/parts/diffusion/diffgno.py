"""Diff-GNO: the server's aggregation of the clients' operators theta_M (UMEDA, Algorithm 1, lines 4
and 10 to 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from communis.core.diagnostics import Diagnostic
from communis.core.reductions.median import GeometricMedian
from communis.core.state import State
from communis.methods.parts.diffusion import operators as ops
from communis.methods.parts.diffusion.consensus import Diffusion

ConsensusName = Literal[
    "diffusion", "kernel", "spectral_mean", "geometric_median", "topr_average", "fedavg"
]
BasisName = Literal["momentum", "theta", "fixed"]
MEANS = ("spectral_mean", "topr_average")
USED = Diagnostic("umeda/used", "1", "the consensus was taken")
FALLBACK = Diagnostic("umeda/fallback", "1", "the mean was taken instead of the consensus")
NOT_FINITE = Diagnostic("umeda/not_finite", "1", "the consensus was not finite")
DISTANCE = Diagnostic("umeda/distance", "radii", "from the mean to the consensus, taken or not")
CAPTURED = Diagnostic("umeda/captured", "share", "of the updates' energy inside the block")
RANK = Diagnostic("umeda/rank", "rank", "the effective rank of theta_M")


@dataclass(frozen=True)
class OperatorState:
    """The server's state of the operators."""

    theta: State = field(default_factory=State)  # theta_M of every layer
    u: State = field(default_factory=State)  # U_g, by layer
    v: State = field(default_factory=State)  # W_g, by layer
    drift: State = field(default_factory=State)  # moving average of clients' changes of theta_M
    psi: State = field(default_factory=State)  # the score network
    seed: int = 0
    round: int = 0  # number of rounds so far
    captured: float = -1.0  # share of the last changes' energy in their cores; -1: unknown
    fallback: bool = False  # the last round took the mean instead of the consensus
    used: bool = False  # the last round took the consensus
    not_finite: bool = False  # the last round took the mean because the consensus was not finite
    distance: float = 0.0  # of the last consensus, taken or not, from the mean, relative to that of
    # the farthest client; 0: there was no consensus, or it was not finite
    noised: bool = False  # clients add privacy noise to their messages


@dataclass(frozen=True)
class DiffGNO:
    """The aggregation of operators. The settings are those of methods/umeda.py."""

    rank: int
    consensus: ConsensusName
    diffusion: Diffusion
    basis: BasisName
    beta: float
    warmup: int
    residual: bool  # add the mean of the changes outside of the block
    align: bool
    eta: float

    def start(self, theta: State, seed: int, noised: bool) -> OperatorState:
        """Returns the state before the first round."""
        u = State()
        v = State()
        if self.consensus != "fedavg":
            u, v = ops.bases(theta, self.rank)  # line 4
        return OperatorState(theta, u, v, drift=theta.zeros(), seed=seed, noised=noised)

    def aggregate(self, state: OperatorState, changes: Sequence[State], n: Tensor) -> OperatorState:
        """Returns the state after a round. changes: the clients' changes of theta_M; n: their
        weights."""
        cores = [ops.cores(change, state.u, state.v) for change in changes]  # line 10
        mean = ops.mean(changes, n)
        state = replace(
            state,
            captured=ops.captured(cores, changes),
            fallback=False,
            used=False,
            not_finite=False,
            distance=0.0,
        )
        if state.round < self.warmup:
            return self._next(state, mean, mean)
        step, state = self._step(state, cores, n)
        if self.residual:
            step = step + (mean - ops.lifted(ops.mean(cores, n), state.u, state.v))
        return self._next(state, step, mean)

    def aggregate_cores(
        self, state: OperatorState, cores: Sequence[State], n: Tensor
    ) -> OperatorState:
        """Returns the state after a round in which clients sent only the cores of their changes.
        The server cannot learn directions outside of the block, so the block has to be fixed."""
        step, state = self._step(state, cores, n)
        return self._next(state, step, step)

    def _step(
        self, state: OperatorState, cores: Sequence[State], n: Tensor
    ) -> tuple[State, OperatorState]:
        """Returns the consensus of the clients' cores as a change of theta_M."""
        if self.consensus in MEANS:
            mean = ops.mean(cores, n)
            return ops.lifted(mean, state.u, state.v), replace(state, used=True)
        points = torch.stack([ops.point(core) for core in cores])  # (clients, D)
        value, state = self._consensus(state, points, n.to(points))
        return ops.lifted(ops.unpacked(value, cores[0]), state.u, state.v), state

    def _consensus(
        self, state: OperatorState, points: Tensor, weights: Tensor
    ) -> tuple[Tensor, OperatorState]:
        """Returns the consensus (D,) of points (clients, D)."""
        if self.consensus == "geometric_median":
            value = GeometricMedian()(points[:, None], weights[:, None])[0]
            return value, replace(state, used=True)
        seed = int(np.random.default_rng([state.seed, state.round]).integers(2**63 - 1))
        generator = torch.Generator().manual_seed(seed)
        consensus = self.diffusion(points, weights, state.psi, generator)  # line 11
        return consensus.value, replace(
            state,
            psi=consensus.psi,
            fallback=bool(consensus.fallback),
            used=not consensus.fallback,
            not_finite=consensus.fallback == "not finite",
            distance=consensus.distance,
        )

    def _next(self, state: OperatorState, step: State, mean: State) -> OperatorState:
        """Returns the operators and bases of the next round. mean: the mean of complete changes, so
        that directions outside of the block can enter it even if the step drops them."""
        theta = state.theta + step * self.eta  # line 12
        drift = state.drift * self.beta + mean
        following = replace(state, theta=theta, drift=drift, round=state.round + 1)
        if self.basis == "fixed":
            return following
        previous = (state.u, state.v) if self.align else (State(), State())
        matrices = theta if self.basis == "theta" else drift
        u, v = ops.bases(matrices, self.rank, previous)  # line 4 of the next round
        return replace(following, u=u, v=v)


def operator_notes(state: OperatorState) -> Mapping[str, float]:
    """Returns the diagnostics of a round."""
    notes = {
        FALLBACK.name: float(state.fallback),
        USED.name: float(state.used),
        NOT_FINITE.name: float(state.not_finite),
        RANK.name: ops.effective_rank(state.theta),
    }
    if state.captured >= 0:
        notes[CAPTURED.name] = state.captured
    if state.distance > 0:
        notes[DISTANCE.name] = state.distance
    return notes
