"""FedPCL. Tan et al., NeurIPS 2022: prototype-wise contrastive learning.
https://arxiv.org/abs/2209.10083

Names: z is an embedding of length 1, p are the prototypes of a client's classes (means of z), tau
is the temperature. The equations of the paper were not available. Prototypes, their plain mean over
clients, padding, tau and prediction follow the authors' code (github.com/yuetan031/FedPCL). The
loss that this code runs compares prototypes with the features of a batch, sums over clients and has
no global term. The two terms here follow descriptions of the method by others. The positive is left
out of the denominator, as in a loss that is commented out in the authors' code.
Messages: Down(p, has, n); Up(p, has, n). has and n are always empty; no parameters are sent.
Deviation: there are no pre-trained backbones. The whole encoder trains, not a projection behind
    frozen backbones.
Deviation: in its first round a client uses the prototypes of its own initial model. In the authors'
    code training starts after all clients have sent prototypes.
Deviation: a class that no client has is in no denominator. Without any other class there is no
    contrastive loss.
Beyond the paper: the server uses the last prototypes of clients that do not take part in a round.
Beyond the paper: `exchange = false` is the control: the same loss, with the client's own prototypes
    as the mean and as the prototypes of all clients.
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
from communis.methods.fedapa import Private
from communis.methods.parts import prototypes
from communis.methods.parts.prototypes import Library
from communis.methods.parts.training import Recipe


@dataclass(frozen=True)
class Up(UpMessage):
    p: Tensor  # (classes, d), zero for classes without windows
    has: Tensor  # empty: p has all rows
    n: Tensor  # empty: counts are not sent

    def check(self, card: Card, method: FedPCL) -> None:
        prototypes.check(self.p, self.has, self.n, card, sparse=False)

    def repaired(self) -> Self:
        p, has, n = prototypes.repaired(self.p, self.has, self.n)
        return replace(self, p=p, has=has, n=n)


@dataclass(frozen=True)
class Down:
    p: Tensor  # (1 + others, classes, d): the mean prototypes and those of all other clients
    has: Tensor  # empty: p has all rows
    n: Tensor  # empty: counts are not sent


@dataclass(frozen=True)
class FedPCL(Recipe, Method[Library, Private, Down, Up]):
    """Clients share class prototypes, never parameters, and train with a contrastive loss on them
    alone; the head is not used. Any mix of models with one embedding size is possible."""

    tau: float = 0.07  # temperature of the contrastive losses and of the prediction
    exchange: bool = True  # false: nothing is sent; a client uses its own prototypes of its last
    # round

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
        p, n = own_prototypes(client)
        device = client.train.target.device
        return self._private(client, p.to(device), n.to(device))

    def down(self, server: Library, card: Card) -> Down:
        """Sends the mean prototypes and those of all other clients, zero for missing classes."""
        others = server.p[server.who != card.id]
        sent = torch.cat([server.means[None], others]) if len(server.who) else others
        p, has = prototypes.pack(sent, sparse=False)
        return Down(p, has, server.n[:0, 0])

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        state.model.load_into(client.model)
        return state

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        targets = padded_sets(state.p, down.p)

        def loss(output: Output, batch: Batch) -> Tensor:
            L = contrast(output.embedding, client.task.labels(batch.target), targets, self.tau)
            return L[0] + L[1:].mean()  # L_g + L_p

        trained = [path for path in client.model.by_path[0] if not path.startswith("head.")]
        self.train(client, loss=loss, paths=trained)
        p, n = own_prototypes(client)
        sent_p, has = prototypes.pack(p, sparse=False)
        # Without counts all clients have equal weight.
        return self._private(client, p, n), Up(sent_p, has, n[:0])

    def aggregate(self, server: Library, ups: Replies[Up]) -> Library:
        return server.updated([(card.id, up.p, up.has, up.n[:0]) for card, up in ups.each()])

    def predict(self, client: Client, state: Private, batch: Batch) -> Tensor:
        """Scores classes by the distance to the client's own prototypes, with the temperature of
        training. A client without prototypes uses the untrained head."""
        output = client.model(batch)
        if not bool(state.n.any()):
            return output.prediction
        distance = torch.cdist(F.normalize(output.embedding), state.p).square()
        missing = state.n == 0
        # The distance to a missing prototype is finite, so that scores are finite.
        return -distance.masked_fill(missing, 1e3) / (2 * self.tau)

    def common(self, server: Library) -> dict[str, Tensor]:
        return server.by_class

    def notes(self, server: Library, node: int) -> dict[str, float]:
        def alpha(library: Library, i: int) -> Tensor:
            return prototypes.equal(library.n)

        weights = prototypes.weight_notes(server, alpha, 0, node)
        return prototypes.similarity_notes(server) | weights

    def _private(self, client: Client, p: Tensor, n: Tensor) -> Private:
        return Private(State.all(client.model), p, n, received=p[:0])


def own_prototypes(client: Client) -> tuple[Tensor, Tensor]:
    """Returns a client's prototypes (classes, d) under its present model, and the numbers of
    windows (classes,) behind them."""
    sums, n = prototypes.class_sums(client, client.train, unit=True)
    return sums / n.clamp_min(1)[:, None], n


def padded_sets(own: Tensor, received: Tensor) -> Tensor:
    """Returns (1 + K, classes, d): the mean prototypes and the prototypes of all clients, the
    client's own first, each padded with the mean. If nothing was received, the client's own
    prototypes are the mean."""
    mean = received[0] if len(received) else own
    mean = torch.where(mean.any(-1, keepdim=True), mean, own)
    sets = torch.cat([mean[None], own[None], received[1:]])
    return torch.where(sets.any(-1, keepdim=True), sets, mean)


def contrast(h: Tensor, y: Tensor, targets: Tensor, tau: float) -> Tensor:
    """Returns (J,): for each of J padded sets (J, classes, d), the mean over h (B, d) of
    log sum_{c != y} exp(z p_c / tau) - z p_y / tau.

    The loss may be negative, as the sum does not include the positive. Because no vector is longer
    than 1, it differs by at most 2 / tau from the logarithm of the number of other classes."""
    known = targets.any(0).any(-1)
    positive = F.one_hot(y, len(known)).bool()[:, None]
    scores = torch.einsum("bd,jcd->bjc", F.normalize(h, eps=prototypes.LEAST), targets) / tau
    others = scores.masked_fill(positive | ~known, torch.finfo(h.dtype).min).logsumexp(-1)
    has_loss = known[y] & (known.sum() > 1)  # the own class and another class have prototypes
    losses = others - (scores * positive).sum(-1)
    return torch.where(has_loss[:, None], losses, 0.0).mean(0)
