"""UMEDA, Lai et al.: Diff-GNO, Section 3.3 and Algorithm 1. Its model is `sglt` (models/sglt.py,
with deviations of its own), its privacy [privacy] mode = "paper" (privacy/guard.py).
The paper has no public address that we know of.

Names follow the paper: theta_M the operator, U_g and W_g its leading directions, psi the score
network, eta_s the server's step. All other parameters, theta_\\M, are averaged as in FedAvg.

Where a setting brings the paper's reading back, it is named. All of them together are the variant
`literal` of the preset umeda/controls.

Deviation: theta_M is a tensor (m, d) of its own in every layer; the cores of all are one point.
Deviation: a sample is no consensus. The default follows the learned score from the clients' mean
    down the probability flow; sampler = "sample_mean" with samples = 1 draws one sample (line 11).
Deviation: the score is learned preconditioned, in coordinates of unit variance, clients weighing by
    samples. score_output = "raw" is Equation 12 as it stands: the output is the score, the
    coordinates are as they are, all clients alike.
Deviation: what ends farther from the mean than every client is replaced by the mean;
    trust_region = 0 takes it wherever it is, unless it is not finite.
Deviation: with fewer than least_clients the mean is taken; least_clients = 1 has no such rule.
Deviation: the paper does not say how the score network is trained. Here: Adam, a rate that falls to
    zero, and every round begins with half of the last network; score_decay = false and
    score_keep = 1 leave both out. The "2-layer MLP" is read as two hidden layers.
Deviation: no noise is added by the last of the reverse steps.
Deviation: theta_M's own directions never change under updates within them, so the block is that of
    a moving average of updates, after `warmup` rounds of plain means, and what is outside of it is
    averaged; basis = "theta", warmup = 0 and residual = "drop" are the paper's.
Deviation: bases are turned towards the last ones, since psi knows coordinates; align = false.
Deviation: where clients noise what they send, a moving average of it is noise. There the block is
    that of theta_M before the first round, for good, and what is outside of it is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from communis.core.contract import (
    Card,
    Client,
    DownMessage,
    FleetView,
    Mechanism,
    Method,
    Sent,
    UpMessage,
)
from communis.core.errors import CommunisError
from communis.core.replies import Replies, samples, uniform
from communis.core.state import State
from communis.methods.fedavg import Averaging
from communis.methods.parts.diffusion import operators as ops
from communis.methods.parts.diffusion.consensus import Diffusion, ScoreOutput
from communis.methods.parts.diffusion.diffgno import (
    BasisName,
    ConsensusName,
    DiffGNO,
    OperatorState,
    noted,
)
from communis.methods.parts.sharing import is_statistic


@dataclass(frozen=True)
class Server(OperatorState):
    w: State = field(default_factory=State)  # theta_\M


@dataclass(frozen=True)
class Private:
    kept: State  # buffers, and what a method keeps private
    rest: State  # of theta_M, with consensus = "topr_average"


@dataclass(frozen=True)
class Down(DownMessage):
    w: State
    operator: State  # theta_M
    u: State  # U_g
    v: State  # W_g
    warm: bool  # this round's mean is plain

    def subspace(self, method: Umeda) -> Mapping[str, Tensor]:
        return self.u if method.upload == "full" else {}


@dataclass(frozen=True)
class Up(UpMessage):
    w: State
    operator: Mapping[str, Tensor]  # theta_M,k, or the core of its change
    mechanism: ClassVar[Mechanism] = Mechanism(
        field="operator", symbol="theta_M", mend='set fleet.models = ["sglt"] with an operator'
    )

    def check(self, card: Card, method: Umeda) -> None:
        own = {path: shape for path, shape in card.params.items() if ops.is_operator(path)}
        ops.check(self.operator, own, method.rank if method.upload == "latent" else 0)


@dataclass(frozen=True)
class Umeda(Averaging, Method[Server, Private, Down, Up]):
    """Clients' updates of the attention's operator meet in its spectral block, by diffusion; the
    rest of the model is averaged."""

    rank: int = 16  # r, of the block
    consensus: ConsensusName = "diffusion"  # of cores; topr_average: their mean, the rest stays
    # with its client; fedavg: the mean of theta_M itself
    basis: Literal["auto", "momentum", "theta", "fixed"] = "auto"  # auto: fixed under noise,
    # else momentum; momentum: the block's directions are those of a moving average of updates;
    # theta: of theta_M as it is; fixed: of theta_M as it was before the first round
    beta: float = 0.8  # what a round keeps of that moving average
    warmup: int = 3  # rounds of plain means first; none where the block is fixed
    residual: Literal["auto", "mean", "drop"] = "auto"  # auto: drop under noise, else mean;
    # mean: that of updates outside of the block is added
    align: bool = True  # turn a basis towards the last one
    upload: Literal["full", "latent"] = "full"  # latent: clients send cores only, of a fixed block
    lr_server: float = 1.0  # eta_s, the server's step
    sampler: Literal["denoise_mean", "sample_mean"] = "denoise_mean"  # sample_mean: the mean
    # of samples; denoise_mean: from the clients' mean down the probability flow
    samples: int = 64  # of sample_mean; the paper: 1
    sigma_min: float = 0.01  # noise at t = 0
    sigma_max: float = 50.0  # noise at t = 1
    sigma_start: float = 4.0  # noise where denoise_mean starts, in the score's coordinates
    reverse_steps: int = 50  # N_rev, from there to t = 0
    trust_region: float = 1.0  # in radii of the clients' cloud; outside the mean is taken; 0: off
    least_clients: int = 8  # with fewer the mean is taken
    score_output: ScoreOutput = "preconditioned"  # raw: the paper's
    score_width: int = 512  # hidden units of the score network's two layers
    score_steps: int = 400  # of training, of a new score network
    score_steps_warm: int = 100  # of training, of one from the last round
    score_batch: int = 128  # points per step
    score_lr: float = 0.003  # of Adam
    score_decay: bool = True  # that rate falls to zero in every round
    score_keep: float = 0.5  # share of the last round's parameters to begin with; 0: a new network

    def __post_init__(self) -> None:
        super().__post_init__()
        if (
            self.rank < 1
            or self.warmup < 0
            or not 0 <= self.beta < 1
            or not 0 < self.lr_server < math.inf
        ):
            needs = "rank >= 1, warmup >= 0, beta in [0, 1) and lr_server > 0"
            found = f"{self.rank}, {self.warmup}, {self.beta} and {self.lr_server}"
            raise CommunisError(f"umeda needs {needs}, got {found}")
        if self.consensus == "fedavg" and self.upload == "latent":
            raise CommunisError('umeda: consensus = "fedavg" has no block: set upload = "full"')
        self._diffusion()  # checks its settings

    def sends(self, card: Card) -> Sent:
        return Sent([path for path in self.travels(card) if not ops.is_operator(path)])

    def start_server(self, fleet: FleetView) -> Server:
        theta = State({p: t for p, t in fleet.params.items() if ops.is_operator(p)})
        w = State({p: t for p, t in self.initial(fleet).items() if p not in theta})
        agreement = self._agreement(fleet.noised)
        known = agreement.start(theta, fleet.streams.number("diffusion"), fleet.noised)
        return Server(**vars(known), w=w)

    def start_client(self, client: Client) -> Private:
        return Private(self.keep(client), State())

    def down(self, server: Server, card: Card) -> Down:
        parts = (server.w, server.theta, server.u, server.v)
        w, theta, u, v = (part.pick(card.shapes) for part in parts)
        return Down(w, theta, u, v, server.round < self._warmup(server.noised))

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        (state.kept | down.w | (down.operator + state.rest)).load_into(client.model)
        return state

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        self.train(client)
        theta = State.of(client.model, down.operator)  # theta_M,k
        change, rest = theta - down.operator, State()
        cores = ops.cores(change, down.u, down.v)  # Equation 10
        if self.consensus == "topr_average" and not down.warm:
            rest = change - ops.lifted(cores, down.u, down.v)
        sent = theta - rest if self.upload == "full" else ops.named(cores)
        w = self.send(client).pick(self.sends(client.card).paths)
        return Private(self.keep(client), rest), Up(w, sent)

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        means = self.merge(server.w, ups)
        w = ops.towards(server.w, means, self.lr_server)
        statistics = means.pick([path for path in means if is_statistic(path)])
        server = replace(server, w=w | statistics)  # no step of statistics, as in scaffold
        if self.consensus == "fedavg" or not server.theta:
            by = uniform if self.uniform else samples
            means = ups.mean(lambda up: State(up.operator), by=by)
            return replace(server, theta=ops.towards(server.theta, means, self.lr_server))
        sent = [(card, up.operator) for card, up in ups.each() if up.operator]
        n = torch.tensor([1.0 if self.uniform else max(1, card.samples) for card, _ in sent])
        if not sent:  # others have no operator
            return server
        agreement = self._agreement(server.noised)
        if self.upload == "latent":
            cores = [ops.unnamed(operator) for _, operator in sent]
            return replace(server, **vars(agreement.moved_by_cores(server, cores, n)))
        changes = [State(operator) - server.theta for _, operator in sent]
        return replace(server, **vars(agreement.moved(server, changes, n)))

    def common(self, server: Server) -> State:
        return server.w | server.theta

    def notes(self, server: Server, node: int) -> Mapping[str, float]:
        return noted(server) if server.theta else {}

    def _basis(self, noised: bool) -> BasisName:
        """What gives the block."""
        if self.upload == "latent":
            return "fixed"
        if self.basis == "auto":
            return "fixed" if noised else "momentum"
        return self.basis

    def _warmup(self, noised: bool) -> int:
        """Rounds of plain means, for a block that follows updates."""
        return 0 if self._basis(noised) == "fixed" else self.warmup

    def _averages_residual(self, noised: bool) -> bool:
        """Whether what is outside of the block is averaged."""
        if self.consensus == "topr_average":
            return False
        if self.residual == "auto":
            return not noised
        return self.residual == "mean"

    def _agreement(self, noised: bool) -> DiffGNO:
        return DiffGNO(
            rank=self.rank,
            consensus=self.consensus,
            diffusion=self._diffusion(),
            basis=self._basis(noised),
            beta=self.beta,
            warmup=self._warmup(noised),
            residual=self._averages_residual(noised),
            align=self.align,
            eta=self.lr_server,
        )

    def _diffusion(self) -> Diffusion:
        return Diffusion(
            sampler="kernel" if self.consensus == "kernel" else self.sampler,
            samples=self.samples,
            sigma_min=self.sigma_min,
            sigma_max=self.sigma_max,
            sigma_start=self.sigma_start,
            reverse_steps=self.reverse_steps,
            trust_region=self.trust_region,
            least_clients=self.least_clients,
            score_output=self.score_output,
            score_width=self.score_width,
            score_steps=self.score_steps,
            score_steps_warm=self.score_steps_warm,
            score_batch=self.score_batch,
            score_lr=self.score_lr,
            score_decay=self.score_decay,
            score_keep=self.score_keep,
        )
