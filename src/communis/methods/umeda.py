"""UMEDA, Lai et al.: Diff-GNO, Section 3.3 and Algorithm 1. Its model is `sglt` (models/sglt.py),
its privacy [privacy] mode = "paper" (privacy/guard.py).

Names follow the paper: theta_M the operator, U_g and W_g its leading directions, psi the score
network, eta_s the server's step. All other parameters, theta_\\M, are averaged as in FedAvg.

Deviation: theta_M is a tensor (m, d) of its own in every layer; the cores of all are one point.
Deviation: a sample is no consensus. `denoise_mean` follows the learned score from the mean; `paper`
    samples as the paper says. What ends outside of the clients' cloud is replaced by the mean.
Deviation: theta_M's own directions never change under updates within them, so the block is that of
    a moving average of updates, after `warmup` rounds of plain means; basis = "theta" is the
    paper's, with warmup = 0 and residual = "drop". Bases are turned towards the last ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from communis.core import Card, Client, CommunisError, FleetView, Method
from communis.diffusion import operators as ops
from communis.diffusion.agreement import Agreement, ConsensusName, Known, LearnedSampler, noted
from communis.methods.fedavg import Averaging
from communis.replies import Replies, samples, uniform
from communis.state import State


@dataclass(frozen=True)
class Server(Known):
    w: State = field(default_factory=State)  # theta_\M


@dataclass(frozen=True)
class Private:
    kept: State  # buffers, and what a method keeps private
    rest: State  # of theta_M, with consensus = "topr_average"


@dataclass(frozen=True)
class Down:
    w: State
    operator: State  # theta_M
    u: State  # U_g
    v: State  # W_g
    warm: bool  # this round's mean is plain


@dataclass(frozen=True)
class Up:
    w: State
    operator: Mapping[str, Tensor]  # theta_M,k, or the core of its change


@dataclass(frozen=True)
class Umeda(Averaging, Method[Server, Private, Down, Up]):
    """Clients' updates of the attention's operator meet in its spectral block, by diffusion; the
    rest of the model is averaged."""

    rank: int = 16  # r, of the block
    consensus: ConsensusName = "diffusion"  # of cores; topr_average: their mean, the rest stays
    # with its client; fedavg: the mean of theta_M itself
    sampler: LearnedSampler = "denoise_mean"  # with consensus = "diffusion"
    basis: Literal["momentum", "theta"] = "momentum"  # what the block's directions are taken from
    beta: float = 0.8  # what a round keeps of that momentum
    warmup: int = 3  # rounds of plain means first; none with upload = "latent"
    residual: Literal["mean", "drop"] = "mean"  # of what is outside of the block
    align: bool = True  # turn a basis towards the last one; else psi starts anew every round
    upload: Literal["full", "latent"] = "full"  # latent: clients send cores only
    lr_server: float = 1.0  # eta_s, the server's step

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rank < 1 or self.warmup < 0 or not 0 <= self.beta < 1 or self.lr_server <= 0:
            needs = "rank >= 1, warmup >= 0, beta in [0, 1) and lr_server > 0"
            found = f"{self.rank}, {self.warmup}, {self.beta} and {self.lr_server}"
            raise CommunisError(f"umeda needs {needs}, got {found}")
        if self.consensus == "fedavg" and self.upload == "latent":
            raise CommunisError('umeda: consensus = "fedavg" has no block: set upload = "full"')

    def sends(self, card: Card) -> list[str]:
        return [path for path in self.travels(card) if not ops.is_operator(path)]

    def start_server(self, fleet: FleetView) -> Server:
        theta = State({p: t for p, t in fleet.params.items() if ops.is_operator(p)})
        w = State({p: t for p, t in self.initial(fleet).items() if p not in theta})
        known = self._agreement.start(theta, fleet.streams.number("diffusion"))
        return Server(**vars(known), w=w)

    def start_client(self, client: Client) -> Private:
        return Private(self.keep(client), State())

    def down(self, server: Server, card: Card) -> Down:
        parts = (server.w, server.theta, server.u, server.v)
        w, theta, u, v = (part.pick(card.shapes) for part in parts)
        return Down(w, theta, u, v, self.upload == "full" and server.round < self.warmup)

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        (state.kept | down.w | (down.operator + state.rest)).load_into(client.model)
        return state

    def subspace(self, down: Down) -> Mapping[str, Tensor]:
        return down.u if self.upload == "full" else {}

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        self.train(client)
        theta = State.of(client.model, down.operator)  # theta_M,k
        change, rest = theta - down.operator, State()
        cores = ops.cores(change, down.u, down.v)  # Equation 10
        if self.consensus == "topr_average" and not down.warm:
            rest = change - ops.lifted(cores, down.u, down.v)
        sent = theta - rest if self.upload == "full" else ops.named(cores)
        w = self.send(client).pick(self.sends(client.card))
        return Private(self.keep(client), rest), Up(w, sent)

    def vet(self, card: Card, up: Up) -> None:
        own = {path: shape for path, shape in card.params.items() if ops.is_operator(path)}
        ops.check(up.operator, own, self.rank if self.upload == "latent" else 0)

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        server = replace(server, w=ops.towards(server.w, self.merge(server.w, ups), self.lr_server))
        if self.consensus == "fedavg" or not server.theta:
            by = uniform if self.uniform else samples
            means = ups.mean(lambda up: State(up.operator), by=by)
            return replace(server, theta=ops.towards(server.theta, means, self.lr_server))
        sent = [(card, up.operator) for card, up in ups.each() if up.operator]
        n = torch.tensor([1.0 if self.uniform else max(1, card.samples) for card, _ in sent])
        if not sent:  # others have no operator
            return server
        if self.upload == "latent":
            cores = [ops.unnamed(operator) for _, operator in sent]
            return replace(server, **vars(self._agreement.moved_by_cores(server, cores, n)))
        changes = [State(operator) - server.theta for _, operator in sent]
        return replace(server, **vars(self._agreement.moved(server, changes, n)))

    def measures(self, server: Server) -> Mapping[str, Tensor]:
        return server.w | server.theta

    def notes(self, server: Server, node: int) -> Mapping[str, float]:
        return noted(server) if server.theta else {}

    @property
    def _agreement(self) -> Agreement:
        mean = self.residual == "mean" and self.consensus != "topr_average"
        names = ("rank", "consensus", "sampler", "basis", "beta", "warmup", "align")
        chosen = {name: getattr(self, name) for name in names}
        return Agreement(**chosen, residual=mean, eta=self.lr_server)
