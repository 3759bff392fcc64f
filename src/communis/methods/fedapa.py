"""FedAPA. Adaptive prototype aggregation for Wi-Fi crowd counting, Section IV
(no public address known).

The formulas did not survive in the text at hand: they are reconstructed from its words, the methods
it builds on and its numbers of parameters and bytes. p are the prototypes of a client's classes, n
the windows behind them, alpha the weights, tau the temperature, lam the weight of both contrasts.
Deviation: embeddings have length 1 in prototypes, as the appendix assumes; the head takes them raw.
Deviation: a client is one of its own peers, or tau -> 0 would not give its own prototype.
Deviation: L_p is the mean over clients of a contrast within each one's prototypes, with the
    positive in the denominator, so it is bounded, as the analysis assumes.
Deviation: nothing is sent before the first round, where lam is 0 (the appendix: random prototypes).
Deviation: a class that nobody has is in no denominator.
Beyond the paper: who sits out keeps its last prototypes, with an age; who was never heard trains
    alone for a round, whatever lam_min. Counts are told at first, when they change, and every tenth
    round, because messages get lost. `sparse`, `min_count`. `exchange = false` is the control: the
    same loss, with the client's own prototypes as personalised ones and as everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from communis.core import requirements
from communis.core.contract import Batch, Card, Client, FleetView, Method, Needs, Output, UpMessage
from communis.core.replies import Replies
from communis.core.state import State
from communis.methods.parts import prototypes
from communis.methods.parts.prototypes import Library
from communis.methods.parts.training import Loss, Recipe

TOLD = 10  # rounds after which counts are told again, in case that somebody missed them


@dataclass(frozen=True)
class Private:
    model: State
    p: Tensor  # (classes, d) as last sent
    n: Tensor  # (classes,)
    received: Tensor  # what the last downlink brought; nothing once it was used


@dataclass(frozen=True)
class Up(UpMessage):
    p: Tensor  # (classes, d), zero without windows; sparse: the rows that are there
    has: Tensor  # sparse: a bit for every class
    n: Tensor  # (classes,) if they are new

    def check(self, card: Card, method: FedAPA) -> None:
        prototypes.check(self.p, self.has, self.n, card, method.sparse)

    def repaired(self) -> Self:
        p, has, n = prototypes.repaired(self.p, self.has, self.n)
        return replace(self, p=p, has=has, n=n)


@dataclass(frozen=True)
class Down:
    p: Tensor  # (1 + others, classes, d): the personalised prototypes, and everybody else's, padded
    has: Tensor  # sparse: a bit for every class of each; p are then rows, and not padded
    n: Tensor  # sparse: (others, classes)


@dataclass(frozen=True)
class FedAPA(Recipe, Method[Library, Private, Down, Up]):
    """Clients share class prototypes, never parameters, and learn most from those whose prototypes
    are like their own: any mix of models with one embedding size."""

    tau: float = 0.5  # temperature, of weights and contrasts
    lam_min: float = 0.0  # weight of the contrasts in the first round
    lam_max: float = 1.0  # weight of the contrasts when they are warmed up
    warmup: int = 50  # rounds from the one to the other, along a cosine
    weights: Literal["adaptive", "average"] = "adaptive"  # by similarity; average: all alike
    clients: bool = True  # contrast with every client's prototypes as well (L_p)
    include_self: bool = True  # a client is one of its own peers
    min_count: int = 1  # windows that a class needs to be told of: one is an embedding itself
    stale: int = 0  # rounds for which prototypes of absent clients count; 0: for ever
    sparse: bool = False  # send the classes that a client has; it pads by itself
    exchange: bool = True  # False: prototypes are the client's own of its last round, none travel

    def __post_init__(self) -> None:
        super().__post_init__()
        requirements.at_least(self, tau=1e-6, lam_min=0, lam_max=self.lam_min, min_count=1)
        requirements.at_least(self, warmup=0, stale=0)

    @property
    def needs(self) -> Needs:
        return Needs(exchange=self.exchange, models="one_embedding")

    def start_server(self, fleet: FleetView) -> Library:
        requirements.classes(fleet, "fedapa", "a prototype belongs to a class")
        return Library.empty(fleet.task.classes, requirements.one_embedding(fleet, "fedapa"))

    def start_client(self, client: Client) -> Private:
        classes, d = client.card.sizes["classes"], client.card.sizes["embedding"]
        nothing = torch.zeros(classes, d, device=client.train.target.device)
        return Private(State.all(client.model), nothing, nothing[:, 0], nothing[:0])

    def down(self, server: Library, card: Card) -> Down:
        known, i = server.fresh(card.id, self.stale)
        if i < 0:
            return Down(*prototypes.pack(known.p[:0], self.sparse), known.n[:0])
        mine = prototypes.personal(known.p, self.alpha(known, i), known.means)[None]
        others = (known.who != card.id) & self.clients
        rest = known.p if self.sparse or not self.clients else known.padded
        told = known.n[others] if self.sparse else known.n[:0]
        return Down(*prototypes.pack(torch.cat([mine, rest[others]]), self.sparse), told)

    def alpha(self, known: Library, i: int) -> Tensor:
        if self.weights == "average":
            return prototypes.equal(known.n)
        return prototypes.weights(known.p, known.n, i, self.tau, self.include_self)

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        state.model.load_into(client.model)
        return replace(state, received=self.targets(client, state, down))

    def targets(self, client: Client, state: Private, down: Down) -> Tensor:
        """(1 + K, classes, d) unit vectors: the personalised prototypes and those of all clients,
        its own included, padded; none if none were sent."""
        sets = prototypes.unpack(down.p, down.has, client.task.classes)
        if len(sets) and self.clients:
            every = prototypes.everybody(sets, state.p, state.n, down.n)
            sets = torch.cat([sets[:1], every])
        return F.normalize(sets, dim=-1)

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        self.train(client, loss=self.objective(client, state.received))
        sums, counts = prototypes.class_sums(client, client.train, unit=True)
        n = torch.where(counts >= self.min_count, counts, 0.0)
        p = sums / n.clamp_min(1)[:, None] * (n > 0)[:, None]  # Equation 4
        known = len(state.received) > 0 and torch.equal(n, state.n.cpu()) and client.round % TOLD
        up = Up(*prototypes.pack(p, self.sparse), n[:0] if known else n)
        return Private(State.all(client.model), p, n, state.received[:0]), up

    def objective(self, client: Client, targets: Tensor) -> Loss | None:
        lam = prototypes.warmed(client.round - 1, self.lam_min, self.lam_max, self.warmup)

        def loss(output: Output, batch: Batch) -> Tensor:  # Equation 12
            y = client.task.labels(batch.target)
            L_CE = client.task.loss(output.prediction, batch.target)
            L = prototypes.contrast(output.embedding, y, targets, self.tau)
            return L_CE + lam * (L[0] + L[1:].mean() if self.clients else L[0])

        return loss if lam and len(targets) else None

    def aggregate(self, server: Library, ups: Replies[Up]) -> Library:
        return server.heard([(card.id, up.p, up.has, up.n) for card, up in ups.each()])

    def common(self, server: Library) -> dict[str, Tensor]:
        return server.by_class

    def notes(self, server: Library, node: int) -> dict[str, float]:
        weights = prototypes.given(server, self.alpha, self.stale, node)
        return prototypes.likeness(server) | weights
