"""FedPCL. Tan et al., NeurIPS 2022: prototype-wise contrastive learning.
https://arxiv.org/abs/2209.10083

z is an embedding of length 1, p are the prototypes of a client's classes (means of z), tau the
temperature. The paper's equations were not at hand. Prototypes, their plain mean over clients,
padding, tau and prediction follow the authors' code (github.com/yuetan031/FedPCL). The loss that
runs there sets prototypes against the features of a batch, sums over clients and has no global
term; the two terms here are the method as others describe it, with the positive left out of the
denominator as in a loss that the authors' code has commented out.
Deviation: no pre-trained backbones: the whole encoder trains, not a projection behind frozen ones.
Deviation: in its first round a client contrasts with the prototypes of its own initial model; in
    the authors' code nothing is learnt before all clients have sent some.
Deviation: a class that nobody has is in no denominator; without any other class there is no
    contrast.
Beyond the paper: who sits out is represented by its last prototypes. `exchange = false` is the
    control: the same loss, with the client's own prototypes as mean and as everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from communis.core import requirements
from communis.core.contract import Batch, Card, Client, FleetView, Method, Needs, Output, UpMessage
from communis.core.replies import Replies
from communis.core.state import State
from communis.methods.fedapa import Down, Private
from communis.methods.parts import prototypes
from communis.methods.parts.prototypes import Library
from communis.methods.parts.training import Recipe


@dataclass(frozen=True)
class Up(UpMessage):
    p: Tensor  # (classes, d), zero without windows
    has: Tensor  # no bits: all classes are there
    n: Tensor  # no counts

    def check(self, card: Card, method: FedPCL) -> None:
        prototypes.check(self.p, self.has, self.n, card, sparse=False)

    def repaired(self) -> Self:
        p, has, n = prototypes.repaired(self.p, self.has, self.n)
        return replace(self, p=p, has=has, n=n)


@dataclass(frozen=True)
class FedPCL(Recipe, Method[Library, Private, Down, Up]):
    """Clients share class prototypes, never parameters, and learn by contrast with them alone; the
    head is not used. Any mix of models with one embedding size."""

    tau: float = 0.07  # temperature of the contrasts and of the prediction
    exchange: bool = True  # False: prototypes are the client's own of its last round, none travel

    def __post_init__(self) -> None:
        super().__post_init__()
        requirements.at_least(self, tau=1e-6)

    @property
    def needs(self) -> Needs:
        return Needs(exchange=self.exchange, models="one_embedding")

    def start_server(self, fleet: FleetView) -> Library:
        requirements.classes(fleet, "fedpcl", "a prototype belongs to a class")
        return Library.empty(fleet.task.classes, requirements.one_embedding(fleet, "fedpcl"))

    def start_client(self, client: Client) -> Private:
        return self._kept(client, *(t.to(client.train.target.device) for t in formed(client)))

    def down(self, server: Library, card: Card) -> Down:
        """The mean prototypes and everybody else's, zero where there is none."""
        others = server.p[server.who != card.id]
        sent = torch.cat([server.means[None], others]) if len(server.who) else others
        return Down(*prototypes.pack(sent, sparse=False), server.n[:0, 0])

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        state.model.load_into(client.model)
        return state

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        targets = sets(state.p, down.p)

        def loss(output: Output, batch: Batch) -> Tensor:
            L = contrast(output.embedding, client.task.labels(batch.target), targets, self.tau)
            return L[0] + L[1:].mean()  # L_g + L_p

        trained = [path for path in client.model.by_path[0] if not path.startswith("head.")]
        self.train(client, loss=loss, paths=trained)
        p, n = formed(client)
        # No counts travel, so all clients weigh alike.
        return self._kept(client, p, n), Up(*prototypes.pack(p, sparse=False), n[:0])

    def aggregate(self, server: Library, ups: Replies[Up]) -> Library:
        return server.heard([(card.id, up.p, up.has, up.n[:0]) for card, up in ups.each()])

    def predict(self, client: Client, state: Private, batch: Batch) -> Tensor:
        """By the nearest of the client's own prototypes, with the temperature of training; without
        any the head decides, as it began."""
        output = client.model(batch)
        if not bool(state.n.any()):
            return output.prediction
        gap = torch.cdist(F.normalize(output.embedding), state.p).square()
        never = state.n == 0  # finite, so that scores stay numbers
        return -gap.masked_fill(never, 1e3) / (2 * self.tau)

    def common(self, server: Library) -> dict[str, Tensor]:
        return server.by_class

    def notes(self, server: Library, node: int) -> dict[str, float]:
        weights = prototypes.given(server, lambda known, i: prototypes.equal(known.n), 0, node)
        return prototypes.likeness(server) | weights

    def _kept(self, client: Client, p: Tensor, n: Tensor) -> Private:
        return Private(State.all(client.model), p, n, received=p[:0])


def formed(client: Client) -> tuple[Tensor, Tensor]:
    """A client's prototypes (classes, d), with its model as it is, and the windows behind them."""
    sums, n = prototypes.class_sums(client, client.train, unit=True)
    return sums / n.clamp_min(1)[:, None], n


def sets(own: Tensor, received: Tensor) -> Tensor:
    """(1 + K, classes, d): the mean prototypes and those of all clients, its own first, padded with
    the mean. Before anything is received its own are the mean."""
    average = received[0] if len(received) else own
    average = torch.where(average.any(-1, keepdim=True), average, own)
    every = torch.cat([average[None], own[None], received[1:]])
    return torch.where(every.any(-1, keepdim=True), every, average)


def contrast(h: Tensor, y: Tensor, targets: Tensor, tau: float) -> Tensor:
    """(J,): for J padded sets (J, classes, d), the mean over h (B, d) of
    log sum_{c != y} exp(z p_c / tau) - z p_y / tau. Without the positive in the sum it may be
    negative, but as no vector is longer than 1 it is within 2 / tau of the logarithm of the number
    of other classes."""
    known = targets.any(0).any(-1)
    positive = F.one_hot(y, len(known)).bool()[:, None]
    scores = torch.einsum("bd,jcd->bjc", F.normalize(h, eps=prototypes.LEAST), targets) / tau
    others = scores.masked_fill(positive | ~known, torch.finfo(h.dtype).min).logsumexp(-1)
    told = known[y] & (known.sum() > 1)
    return torch.where(told[:, None], others - (scores * positive).sum(-1), 0.0).mean(0)
