"""FedProto. Tan et al., AAAI 2022, Algorithm 1.
https://arxiv.org/abs/2105.00243

Names follow the paper: C are the prototypes, D_ij the samples of class j at client i, lam the
weight of the regulariser.
Messages: Down(C, n); Up(sums, counts). No parameters are sent.
Deviation: Equation 6 divides the sample-weighted mean by the number of clients once more, which
    would shrink the prototypes. The server takes the sample-weighted mean itself. Clients send sums
    and counts, which are additive.
Deviation: a class that no client of the cohort has keeps its last prototype. A class without a
    prototype has no regulariser.
Deviation: the regulariser applies to the embedding of every sample and is the mean of squares over
    dimensions, as in the authors' code (nn.MSELoss in lib/update.py of yuetan031/FedProto).
    `distance` = "sum" gives the squared norm, which multiplies lam by the number of dimensions.
Beyond the paper: `exchange = false` is the control: the same loss with the client's own prototypes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import torch
from torch import Tensor

from communis.core import requirements
from communis.core.contract import Batch, Card, Client, FleetView, Method, Needs, Output, UpMessage
from communis.core.errors import CommunisError
from communis.core.replies import Replies
from communis.core.state import State
from communis.methods.parts.prototypes import class_sums, repaired_counts
from communis.methods.parts.training import Recipe


@dataclass(frozen=True)
class Server:
    C: Tensor  # (classes, embedding)
    n: Tensor  # (classes,): samples behind each prototype when it was last updated; 0: no prototype


@dataclass(frozen=True)
class Private:
    model: State
    C: Tensor  # (classes, embedding): the prototypes last received
    n: Tensor  # (classes,): the samples behind them


@dataclass(frozen=True)
class Down:
    C: Annotated[Tensor, "classes", "embedding"]
    n: Annotated[Tensor, "classes"]


@dataclass(frozen=True)
class Up(UpMessage):
    sums: Annotated[Tensor, "classes", "embedding"]  # sum of the embeddings of each class
    counts: Annotated[Tensor, "classes"]  # |D_ij|

    def check(self, card: Card, method: FedProto) -> None:
        n = self.counts
        integers = bool((n == n.round()).all())
        if not integers or float(n.min()) < 0 or float(n.sum()) > card.samples:
            raise CommunisError(
                f"counts must be whole numbers of at least 0 with a sum of at most {card.samples}, "
                "the client's number of windows"
            )

    def repaired(self) -> Self:
        sums, counts = repaired_counts(self.sums, self.counts)
        return replace(self, sums=sums, counts=counts)


@dataclass(frozen=True)
class FedProto(Recipe, Method[Server, Private, Down, Up]):
    """Clients share class prototypes, never parameters. Any mix of models with one embedding size
    is possible."""

    lam: float = 1.0  # weight of the distance to the prototypes
    distance: Literal["mean", "sum"] = "mean"  # mean or sum of the squared differences over the
    # dimensions of the embedding
    inference: Literal["head", "prototype"] = "head"  # predict with the head or by the nearest
    # prototype
    exchange: bool = True  # false: nothing is sent; a client uses its own prototypes of its last
    # round

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam < 0:
            raise CommunisError(f"fedproto needs lam >= 0, got {self.lam}")

    @property
    def needs(self) -> Needs:
        return Needs(exchange=self.exchange, models="one_embedding")

    def start_server(self, fleet: FleetView) -> Server:
        requirements.classes(fleet, "fedproto", "a prototype belongs to a class")
        size = requirements.one_embedding(fleet, "fedproto")
        classes = fleet.task.classes
        return Server(C=torch.zeros(classes, size), n=torch.zeros(classes))

    def start_client(self, client: Client) -> Private:
        classes = client.card.sizes["classes"]
        size = client.card.sizes["embedding"]
        return Private(State.all(client.model), torch.zeros(classes, size), torch.zeros(classes))

    def down(self, server: Server, card: Card) -> Down:
        return Down(C=server.C, n=server.n)

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        state.model.load_into(client.model)
        return Private(state.model, down.C, down.n)

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        def loss(output: Output, batch: Batch) -> Tensor:
            y = client.task.labels(batch.target)
            known = (down.n[y] > 0).float()  # whether the class has a prototype
            squares = (output.embedding - down.C[y]).square()
            distance = squares.mean(1) if self.distance == "mean" else squares.sum(1)
            regulariser = (known * distance).mean()
            task = client.task.loss(output.prediction, batch.target)
            return task + self.lam * regulariser  # Equation 7

        self.train(client, loss=loss if self.lam else None)
        sums, counts = class_sums(client, client.train, unit=False)
        return Private(State.all(client.model), down.C, down.n), Up(sums, counts)

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        C, n = ups.classwise(lambda up: up.sums, lambda up: up.counts)
        sent = n > 0
        return Server(C=torch.where(sent[:, None], C, server.C), n=torch.where(sent, n, server.n))

    def common(self, server: Server) -> dict[str, Tensor]:
        return {str(c): server.C[c] for c in server.n.nonzero().flatten().tolist()}

    def predict(self, client: Client, state: Private, batch: Batch) -> Tensor:
        output = client.model(batch)
        if self.inference == "head" or not bool((state.n > 0).any()):
            return output.prediction
        distance = torch.cdist(output.embedding, state.C)
        # The score of a missing prototype is finite, so that all scores are finite.
        return (-distance).masked_fill(state.n == 0, -1e4)
