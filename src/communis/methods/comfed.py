"""CoMFed. Badi, Ben Issaid and Bennis, latent-space consensus, Algorithm 1
(no public address known).

Names follow the paper: w the model, v the embedding, P the translator to the latent space of size
d, u = P v, u* the target of a class, lam the weight of the regulariser.
Deviation: the pull is on the class means of a minibatch, Equation 5, averaged over its classes.
Deviation: the norm is smoothed by 1e-3; its slope has length 1 even next to the target.
Deviation: Equations 10 to 12 call several pulls and one towards their centre alike; for the norm
    the slopes differ. One is the default, also in Equation 8; of several, the mean over those who
    told of the class.
Deviation: u is of the new w, from a balanced minibatch without dropout; Algorithm 1 mixes rounds.
Deviation: a class that nobody sent keeps its target for `stale` rounds; one without has no pull.
Beyond the paper: `exchange = false` is the control: the same loss with the client's own u as target
    (with several pulls there is none), nothing sent.
Deviation: P trains with Adam, without decay (P = 0 is a minimum); lam then hardly scales its steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from communis.core import requirements
from communis.core.contract import (
    AfterExchange,
    Batch,
    Card,
    Client,
    FleetView,
    Needs,
    Output,
    UpMessage,
)
from communis.core.reductions.median import GeometricMedian
from communis.core.replies import Replies
from communis.core.state import State
from communis.methods.parts import latent
from communis.methods.parts.training import Recipe


@dataclass(frozen=True)
class Server:
    u: Tensor  # (pulls, classes, d): u*, or with several pulls what every client sent last
    age: Tensor  # (pulls, classes) rounds since it was heard
    who: Tensor  # (pulls,) the client; -1: u*


@dataclass(frozen=True)
class Private:
    w: State
    P: Tensor  # (d, embedding)
    v: Tensor  # (classes, embedding) as last sent, before P
    has: Tensor  # (classes,) bool
    u: Tensor  # (pulls, classes, d) as last received
    known: Tensor  # (pulls, classes) bool
    at: int  # the round of the latter


@dataclass(frozen=True)
class Up(UpMessage):
    u: Tensor  # (n, d) of the n classes in `has`
    has: Tensor  # (classes / 8,) bits

    def check(self, card: Card, method: CoMFed) -> None:
        latent.check(self.u, self.has, card.sizes["classes"], method.d)


@dataclass(frozen=True)
class Down:
    u: Tensor  # (n, d) of the n classes in `has`; none before training: clients have kept them
    has: Tensor  # (pulls * classes / 8,) bits


@dataclass(frozen=True)
class CoMFed(Recipe, AfterExchange[Server, Private, Down, Up]):
    """Clients pull the class means of their embeddings, translated into a small common space,
    towards a consensus: any mix of models and sensors, star or graph."""

    d: int = 16  # size of the latent space
    lam: float = 0.4  # weight of the pull
    consensus: Literal["mean", "median"] = "median"  # phi: squared distance, or distance
    pull: Literal["single", "multi"] = "single"  # towards the consensus, or every neighbour
    n_proj: int = 10  # steps of the translator after the exchange
    lr_P: float = 1e-3  # its learning rate
    freeze_P: bool = False  # orthonormal translators, alike where sizes agree, that never train
    common_P: bool = False  # translators start alike where sizes agree
    scale_lock: int = 0  # from this round on classes lie at distance 1 from their mean; 0: never
    stale: int = 5  # rounds for which a class that is not heard keeps its target
    warmup: int = 0  # rounds without a pull on the model
    statistics: Literal["batch", "running"] = "batch"  # BatchNorm's, when u is estimated
    exchange: bool = True  # False: the consensus is the client's own u of its last round

    def __post_init__(self) -> None:
        super().__post_init__()
        requirements.at_least(self, d=1, lam=0, n_proj=0, lr_P=0, scale_lock=0, stale=0, warmup=0)

    @property
    def needs(self) -> Needs:
        return Needs(exchange=self.exchange, models="any")

    def start_server(self, fleet: FleetView) -> Server:
        requirements.classes(fleet, "comfed", "a latent statistic belongs to a class")
        requirements.embedding(
            fleet, self.d if self.freeze_P else 1, "freeze_P", "take a smaller d"
        )
        pulls = int(self.pull == "single")
        age = torch.full((pulls, fleet.task.classes), latent.NEVER)
        return Server(torch.zeros(*age.shape, self.d), age, who=torch.full((pulls,), -1))

    def start_client(self, client: Client) -> Private:
        e, classes = client.card.sizes["embedding"], client.card.sizes["classes"]
        P = latent.translator(client, self.d, self.common_P, self.freeze_P)
        v, u = P.new_zeros(classes, e), P.new_zeros(0, classes, self.d)
        return Private(State.all(client.model), P, v, v[:, 0] > 0, u, u[..., 0] > 0, at=0)

    def down(self, server: Server, card: Card) -> Down:
        return Down(*latent.pack(server.u[:0], server.age[:0] < 0))

    def down_after(self, server: Server, card: Card) -> Down:
        others = server.who != card.id
        return Down(*latent.pack(server.u[others], server.age[others] <= self.stale))

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        state.w.load_into(client.model)
        return state

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        fresh = client.round - 1 - state.at <= self.stale and client.round > self.warmup
        pulled = fresh and self.lam > 0 and bool(state.known.any())
        target = state.u, state.known, self.consensus

        def loss(output: Output, batch: Batch) -> Tensor:  # Equation 8
            y = client.task.labels(batch.target)
            v, has = latent.class_means(output.embedding, y, client.task.classes)
            L_local = client.task.loss(output.prediction, batch.target)
            L_reg = self.lam * latent.regulariser(v @ state.P.T, has, *target)
            return latent.traced(client, L_local, L_reg)

        self.train(client, loss=loss if pulled else None)
        v, has = latent.statistics(client, self.batch, self.statistics == "batch")
        u = v @ state.P.T  # Equation 5
        return replace(state, w=State.all(client.model), v=v, has=has), Up(*latent.pack(u, has))

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        def rows(up: Up) -> tuple[Tensor, Tensor]:
            return latent.unpack(up.u, up.has, server.u.shape[1])

        if self.pull == "multi":
            sent = [(card.id, *rows(up)) for card, up in ups.each()]
            return Server(*latent.collected((server.u, server.age, server.who), sent))
        median = GeometricMedian() if self.consensus == "median" else None
        u, n = ups.classwise(lambda up: rows(up)[0], lambda up: rows(up)[1].float(), median)
        age = torch.where(n > 0, 0.0, server.age + 1)  # Equation 11
        return Server(torch.where(n[:, None] > 0, u, server.u), age, server.who)

    def common(self, server: Server) -> dict[str, Tensor]:
        return latent.told(server.u, server.age, server.who)

    def after_exchange(self, client: Client, state: Private, down: Down) -> Private:
        u, known = latent.unpack(down.u, down.has, client.task.classes)
        client.log.update(latent.course(state.v @ state.P.T, state.has, u, known))

        def loss(P: Tensor) -> Tensor:  # Equation 9
            return self.lam * latent.regulariser(state.v @ P.T, state.has, u, known, self.consensus)

        steps = 0 if self.freeze_P or not self.lam else self.n_proj
        P = latent.descended(client, state.P, loss, self.lr_P, steps)
        if 0 < self.scale_lock <= client.round:
            P = P / latent.scale(state.v @ P.T, state.has)
        return replace(state, P=P, u=u, known=known, at=client.round)
