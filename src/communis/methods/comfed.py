"""CoMFed. Badi, Ben Issaid and Bennis, latent-space consensus, Algorithm 1
(no public address known).

Names follow the paper: w is the model, v the embedding, P the translator to the latent space of
size d, u = P v, u* the target of a class, lam the weight of the regulariser. A pull is one term of
the regulariser, which draws u towards a target.
Messages: Down(u, has); Up(u, has). u holds class vectors in the latent space; w, v and P are not
    sent.
Deviation: the regulariser acts on the class means of a minibatch (Equation 5) and is averaged over
    the classes in it.
Deviation: the norm is smoothed by 1e-3, because the gradient of the plain norm has length 1 even
    close to the target.
Deviation: Equations 10 to 12 treat several pulls and one pull towards their centre as equivalent.
    For the norm their gradients differ. The default is one pull, also in Equation 8; with several
    pulls the regulariser is their mean over the clients that sent the class.
Deviation: u is computed with the new w, from a balanced minibatch without dropout. Algorithm 1
    combines values of different rounds.
Deviation: a class that no client sent keeps its target for `stale` rounds. A class without a target
    has no pull.
Deviation: P trains with Adam and without weight decay, as P = 0 is a minimum. With Adam, lam has
    little effect on the size of its steps.
Beyond the paper: `exchange = false` is the control: the same loss with the client's own u as the
    target, and nothing is sent. With several pulls the control has no target.
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
    u: Tensor  # (pulls, classes, d): u*, or with several pulls the last u of every client
    age: Tensor  # (pulls, classes) rounds since the value was last received
    who: Tensor  # (pulls,) the client that sent u; -1: u*


@dataclass(frozen=True)
class Private:
    w: State
    P: Tensor  # (d, embedding)
    v: Tensor  # (classes, embedding): the class means behind the u last sent
    has: Tensor  # (classes,) bool: which classes have a mean in v
    u: Tensor  # (pulls, classes, d): the targets last received
    known: Tensor  # (pulls, classes) bool: which targets exist in u
    at: int  # the round in which u was received


@dataclass(frozen=True)
class Up(UpMessage):
    u: Tensor  # (n, d), for the n classes in `has`
    has: Tensor  # (classes / 8,) bytes: one bit per class

    def check(self, card: Card, method: CoMFed) -> None:
        latent.check(self.u, self.has, card.sizes["classes"], method.d)


@dataclass(frozen=True)
class Down:
    u: Tensor  # (n, d), for the n classes in `has`; empty before training, as clients keep targets
    has: Tensor  # (pulls, classes / 8) bytes: one bit per class


@dataclass(frozen=True)
class CoMFed(Recipe, AfterExchange[Server, Private, Down, Up]):
    """Clients map the class means of their embeddings into a small latent space and draw them
    towards a consensus of all clients. Any mix of models and sensors is possible, on a star or a
    graph."""

    d: int = 16  # size of the latent space
    lam: float = 0.4  # weight of the regulariser; 0: clients train alone
    consensus: Literal["mean", "median"] = "median"  # distance phi to the target, and the target
    # that minimises it; mean: squared norm; median: norm, geometric median
    pull: Literal["single", "multi"] = "single"  # single: towards the consensus; multi: towards
    # every other client (on a graph, every neighbour)
    n_proj: int = 10  # steps of the translator after each exchange
    lr_P: float = 1e-3  # learning rate of the translator
    freeze_P: bool = False  # translators have orthonormal rows and are not trained; clients with
    # the same embedding size have the same translator
    common_P: bool = False  # clients with the same embedding size start with the same translator
    scale_lock: int = 0  # round from which the translator is rescaled so that the class vectors
    # have root mean square distance 1 from their mean; 0: never
    stale: int = 5  # rounds for which a class keeps its target if no client sends it
    warmup: int = 0  # rounds at the start in which the model trains without the regulariser
    statistics: Literal["batch", "running"] = "batch"  # statistics that BatchNorm uses when u is
    # computed; batch: of the minibatch; running: its running averages
    exchange: bool = True  # false: nothing is sent; the target is the client's own u of its last
    # round

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
        pulls = 1 if self.pull == "single" else 0  # "multi": the first messages add them
        classes = fleet.task.classes
        u = torch.zeros(pulls, classes, self.d)
        age = torch.full((pulls, classes), latent.NEVER)
        return Server(u, age, who=torch.full((pulls,), -1))

    def start_client(self, client: Client) -> Private:
        e = client.card.sizes["embedding"]
        classes = client.card.sizes["classes"]
        P = latent.translator(client, self.d, self.common_P, self.freeze_P)
        return Private(
            w=State.all(client.model),
            P=P,
            v=P.new_zeros(classes, e),
            has=P.new_zeros(classes, dtype=torch.bool),
            u=P.new_zeros(0, classes, self.d),  # no pulls yet
            known=P.new_zeros(0, classes, dtype=torch.bool),
            at=0,
        )

    def down(self, server: Server, card: Card) -> Down:
        """Sends nothing: the client has kept the targets of the last exchange."""
        return Down(*latent.no_targets(server.u))

    def down_after(self, server: Server, card: Card) -> Down:
        """Sends the targets that are not stale; with several pulls, those of other clients."""
        others = server.who != card.id
        return Down(*latent.pack(server.u[others], server.age[others] <= self.stale))

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        state.w.load_into(client.model)
        return state

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        targets_not_stale = client.round - 1 - state.at <= self.stale
        has_targets = targets_not_stale and bool(state.known.any())
        regularised = has_targets and self.lam > 0 and client.round > self.warmup

        def loss(output: Output, batch: Batch) -> Tensor:  # Equation 8
            y = client.task.labels(batch.target)
            v, has = latent.class_means(output.embedding, y, client.task.classes)
            L_local = client.task.loss(output.prediction, batch.target)
            u = v @ state.P.T  # Equation 5
            L_reg = latent.regulariser(u, has, state.u, state.known, self.consensus)  # Equation 6
            return latent.logged_sum(client, L_local, self.lam * L_reg)

        self.train(client, loss=loss if regularised else None)
        v, has = latent.statistics(client, self.batch, self.statistics == "batch")
        u = v @ state.P.T  # Equation 5
        return replace(state, w=State.all(client.model), v=v, has=has), Up(*latent.pack(u, has))

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        def unpacked(up: Up) -> tuple[Tensor, Tensor]:
            return latent.unpack(up.u, up.has, server.u.shape[1])

        if self.pull == "multi":
            sent = [(card.id, *unpacked(up)) for card, up in ups.each()]  # u_j of Equation 10
            return Server(*latent.latest((server.u, server.age, server.who), sent))
        # u* of Equation 11: the mean for the squared norm, the geometric median for the norm.
        median = GeometricMedian() if self.consensus == "median" else None
        u, n = ups.classwise(
            lambda up: unpacked(up)[0], lambda up: unpacked(up)[1].float(), median
        )  # Equation 11
        age = torch.where(n > 0, 0.0, server.age + 1)
        return Server(torch.where(n[:, None] > 0, u, server.u), age, server.who)

    def common(self, server: Server) -> dict[str, Tensor]:
        return latent.consensus_by_class(server.u, server.age, server.who)

    def after_exchange(self, client: Client, state: Private, down: Down) -> Private:
        u, known = latent.unpack(down.u, down.has, client.task.classes)
        client.log.update(latent.distances(state.v @ state.P.T, state.has, u, known))

        def loss(P: Tensor) -> Tensor:  # Equation 9, with one pull Equation 12
            return self.lam * latent.regulariser(state.v @ P.T, state.has, u, known, self.consensus)

        steps = 0 if self.freeze_P or not self.lam else self.n_proj
        P = latent.trained_translator(client, state.P, loss, self.lr_P, steps)
        if 0 < self.scale_lock <= client.round:
            P = P / latent.scale(state.v @ P.T, state.has)
        return replace(state, P=P, u=u, known=known, at=client.round)
