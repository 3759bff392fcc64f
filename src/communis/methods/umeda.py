"""UMEDA, Lai et al.: Diff-GNO, Section 3.3 and Algorithm 1 (no public address known). Its model is
`sglt` (models/sglt.py, with its own deviations), its privacy is [privacy] mode = "paper".

Names follow the paper: theta_M is the operator, U_g and W_g are its leading directions, psi is the
score network, eta_s the server's step. The block of a matrix is the span of r leading directions on
both sides; the core is the r x r matrix of a change in this block. All other parameters, theta_\\M,
are averaged as in FedAvg.
Messages: Down(w, operator, u, v, warm); Up(w, operator). w is theta_\\M, operator is theta_M or the
    cores of its change, u and v are U_g and W_g.

Each deviation names the setting that restores the paper's reading. All of these settings together
are the variant `literal` of the preset umeda/controls.

Deviation: theta_M is a separate tensor (m, d) in every layer. The cores of all layers form one
    point.
Deviation: a sample is not a consensus. The default starts at the clients' mean and follows the
    probability flow of the learned score. sampler = "sample_mean" with samples = 1 draws one sample
    (line 11).
Deviation: the score network is preconditioned and works in coordinates of unit variance, and
    clients are weighted by samples. score_output = "raw" is the literal Equation 12: the output is
    the score, coordinates are not scaled, and all clients have equal weight.
Deviation: a result that is farther from the mean than every client is replaced by the mean.
    trust_region = 0 accepts any finite result.
Deviation: with fewer than least_clients clients the mean is taken; least_clients = 1 disables this.
Deviation: the paper does not state how the score network is trained. Here the optimiser is Adam
    with a learning rate that decreases to zero, and every round starts with the parameters of the
    last network multiplied by score_keep. score_decay = false and score_keep = 1 disable both. The
    "2-layer MLP" is read as two hidden layers.
Deviation: the last reverse step adds no noise.
Deviation: theta_M's own leading directions never change under updates within their span. Therefore
    the block is that of a moving average of updates, after `warmup` rounds of plain means, and the
    residual outside of the block is averaged. basis = "theta", warmup = 0 and residual = "drop"
    are the paper's.
Deviation: a new basis is rotated towards the last one, because psi depends on the coordinates;
    align = false disables this.
Deviation: if clients add noise to their messages, a moving average of these is noise too. In this
    case the block is that of theta_M before the first round, in all rounds, and the residual
    outside of it is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
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
    operator_notes,
)
from communis.methods.parts.sharing import is_statistic


@dataclass(frozen=True)
class Server(OperatorState):
    w: State = field(default_factory=State)  # theta_\M

    def with_operators(self, state: OperatorState) -> Server:
        """Returns this state with the operators of another one."""
        operators = {f.name: getattr(state, f.name) for f in fields(OperatorState)}
        return replace(self, **operators)


@dataclass(frozen=True)
class Private:
    kept: State  # buffers and private parameters
    rest: State  # the client's own part of theta_M outside of the block, with topr_average


@dataclass(frozen=True)
class Down(DownMessage):
    w: State
    operator: State  # theta_M
    u: State  # U_g
    v: State  # W_g
    warm: bool  # the round takes the plain mean

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
    """The server combines the clients' updates of the attention operator with a diffusion model in
    the operator's spectral block; all other parameters are averaged."""

    rank: int = 16  # r, rank of the block, at least 1
    consensus: ConsensusName = "diffusion"  # combination of the clients' cores; diffusion: with a
    # score network, see sampler; kernel: mode of a kernel density; spectral_mean: mean;
    # geometric_median: geometric median; topr_average: mean, while the residual outside of the
    # block stays on the client; fedavg: mean of theta_M, without a block
    basis: Literal["auto", "momentum", "theta", "fixed"] = "auto"  # matrix whose leading directions
    # are the block; momentum: a moving average of updates; theta: the present theta_M; fixed:
    # theta_M before the first round; auto: fixed if privacy adds noise, else momentum
    beta: float = 0.8  # decay of the moving average with basis = "momentum", in [0, 1)
    warmup: int = 3  # rounds of plain means at the start; none with a fixed block
    residual: Literal["auto", "mean", "drop"] = "auto"  # updates outside of the block; mean: their
    # mean is added; drop: they are ignored; auto: drop if privacy adds noise, else mean
    align: bool = True  # rotate a new basis towards the last one
    upload: Literal["full", "latent"] = "full"  # full: clients send theta_M; latent: only the cores
    # of its change in a fixed block
    lr_server: float = 1.0  # eta_s, step of the server, above 0; 1: the whole step
    sampler: Literal["denoise_mean", "sample_mean"] = "denoise_mean"  # denoise_mean: follow the
    # probability flow from the clients' mean; sample_mean: mean of random samples
    samples: int = 64  # number of samples with sample_mean; in the paper 1
    sigma_min: float = 0.01  # noise at t = 0, above 0
    sigma_max: float = 50.0  # noise at t = 1, above sigma_min
    sigma_start: float = 4.0  # noise at the start of denoise_mean, in the score's coordinates;
    # above sigma_min, at most sigma_max
    reverse_steps: int = 50  # N_rev, number of steps from the start to t = 0
    trust_region: float = 1.0  # largest distance of the consensus from the clients' mean, relative
    # to that of the farthest client; beyond it the mean is taken; 0: no limit
    least_clients: int = 8  # with fewer clients the mean is taken
    score_output: ScoreOutput = "preconditioned"  # output of the score network; preconditioned:
    # scaled to unit variance at all noise levels; raw: the score itself, as in the paper
    score_width: int = 512  # units of the two hidden layers of the score network
    score_steps: int = 400  # training steps of a new score network
    score_steps_warm: int = 100  # training steps of a score network from the last round
    score_batch: int = 128  # points per training step
    score_lr: float = 0.003  # learning rate of the score network (Adam)
    score_decay: bool = True  # this learning rate decreases to zero within every round
    score_keep: float = 0.5  # factor, from 0 to 1, on the parameters of the last round's network
    # at the start of training; 0: a new network

    def __post_init__(self) -> None:
        super().__post_init__()
        counts = self.rank >= 1 and self.warmup >= 0
        if not counts or not 0 <= self.beta < 1 or not 0 < self.lr_server < math.inf:
            raise CommunisError(
                "umeda needs rank >= 1, warmup >= 0, beta in [0, 1) and lr_server > 0, got "
                f"{self.rank}, {self.warmup}, {self.beta} and {self.lr_server}"
            )
        if self.consensus == "fedavg" and self.upload == "latent":
            raise CommunisError(
                'umeda: consensus = "fedavg" has no block, so no cores can be sent: '
                'set upload = "full"'
            )
        self._diffusion()  # checks the settings of the diffusion

    def sends(self, card: Card) -> Sent:
        return Sent([path for path in self.travels(card) if not ops.is_operator(path)])

    def start_server(self, fleet: FleetView) -> Server:
        theta = State({p: t for p, t in fleet.params.items() if ops.is_operator(p)})
        w = State({p: t for p, t in self.initial(fleet).items() if p not in theta})
        seed = fleet.streams.number("diffusion")
        operators = self._diffgno(fleet.noised).start(theta, seed, fleet.noised)
        return Server(w=w).with_operators(operators)

    def start_client(self, client: Client) -> Private:
        return Private(self.keep(client), State())

    def down(self, server: Server, card: Card) -> Down:
        paths = card.shapes
        return Down(
            w=server.w.pick(paths),
            operator=server.theta.pick(paths),
            u=server.u.pick(paths),
            v=server.v.pick(paths),
            warm=server.round < self._warmup(server.noised),
        )

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        (state.kept | down.w | (down.operator + state.rest)).load_into(client.model)
        return state

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        self.train(client)  # line 6
        theta = State.of(client.model, down.operator)  # theta_M,k
        change = theta - down.operator
        cores = ops.cores(change, down.u, down.v)  # Equation 10
        rest = State()
        if self.consensus == "topr_average" and not down.warm:
            rest = change - ops.lifted(cores, down.u, down.v)
        operator = theta - rest if self.upload == "full" else ops.named(cores)
        w = self.send(client).pick(self.sends(client.card).paths)
        return Private(self.keep(client), rest), Up(w, operator)  # line 8

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        means = self.merge(server.w, ups)
        w = ops.towards(server.w, means, self.lr_server)  # line 12, theta_\M
        # As in scaffold, the server's step does not apply to statistics.
        statistics = means.pick([path for path in means if is_statistic(path)])
        server = replace(server, w=w | statistics)
        if self.consensus == "fedavg" or not server.theta:
            by = uniform if self.uniform else samples
            means = ups.mean(lambda up: State(up.operator), by=by)
            return replace(server, theta=ops.towards(server.theta, means, self.lr_server))
        # Clients with other models have no operator.
        sent = [(card, up.operator) for card, up in ups.each() if up.operator]
        if not sent:
            return server
        n = torch.tensor([1.0 if self.uniform else max(1, card.samples) for card, _ in sent])
        diffgno = self._diffgno(server.noised)
        if self.upload == "latent":
            cores = [ops.unnamed(operator) for _, operator in sent]
            return server.with_operators(diffgno.aggregate_cores(server, cores, n))
        changes = [State(operator) - server.theta for _, operator in sent]
        return server.with_operators(diffgno.aggregate(server, changes, n))  # lines 10 to 12

    def common(self, server: Server) -> State:
        return server.w | server.theta

    def notes(self, server: Server, node: int) -> Mapping[str, float]:
        return operator_notes(server) if server.theta else {}

    def _basis(self, noised: bool) -> BasisName:
        """Returns the matrix that defines the block."""
        if self.upload == "latent":
            return "fixed"
        if self.basis == "auto":
            return "fixed" if noised else "momentum"
        return self.basis

    def _warmup(self, noised: bool) -> int:
        """Returns the number of rounds of plain means, which a fixed block does not need."""
        return 0 if self._basis(noised) == "fixed" else self.warmup

    def _averages_residual(self, noised: bool) -> bool:
        """Returns whether the server adds the mean residual outside of the block."""
        if self.consensus == "topr_average":
            return False
        if self.residual == "auto":
            return not noised
        return self.residual == "mean"

    def _diffgno(self, noised: bool) -> DiffGNO:
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
