"""FedProto. Tan et al., AAAI 2022, Algorithm 1.
https://arxiv.org/abs/2105.00243

Names follow the paper: C the prototypes, D_ij the samples of class j at client i, lam the weight of
the regulariser.
Deviation: Equation 6 divides the sample-weighted mean by the number of clients once more, which
would shrink prototypes; we
    take the sample-weighted mean itself. It travels as sums and counts, which add up.
Deviation: a class nobody in the cohort has keeps its last prototype; one without any has no pull.
Deviation: the regulariser is of every sample's embedding, by the mean of squares over dimensions,
    as in the authors' code (nn.MSELoss in lib/update.py of yuetan031/FedProto). The squared norm is
    `distance` = "sum": lam then counts as often as there are dimensions.
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
from communis.methods.parts.prototypes import class_sums, counted
from communis.methods.parts.training import Recipe


@dataclass(frozen=True)
class Server:
    C: Tensor  # (classes, embedding)
    # (classes,) samples behind each prototype in the last round that had the class; 0: none yet
    n: Tensor


@dataclass(frozen=True)
class Private:
    model: State
    C: Tensor  # the prototypes last received
    n: Tensor


@dataclass(frozen=True)
class Down:
    C: Annotated[Tensor, "classes", "embedding"]
    n: Annotated[Tensor, "classes"]


@dataclass(frozen=True)
class Up(UpMessage):
    sums: Annotated[Tensor, "classes", "embedding"]  # of embeddings, by class
    counts: Annotated[Tensor, "classes"]  # |D_ij|

    def check(self, card: Card, method: FedProto) -> None:
        n = self.counts
        whole = bool((n == n.round()).all())
        if not whole or float(n.min()) < 0 or float(n.sum()) > card.samples:
            raise CommunisError(f"counts are not those of {card.samples} windows")

    def repaired(self) -> Self:
        sums, counts = counted(self.sums, self.counts)
        return replace(self, sums=sums, counts=counts)


@dataclass(frozen=True)
class FedProto(Recipe, Method[Server, Private, Down, Up]):
    """Clients share class prototypes, never parameters: any mix of models with one embedding
    size."""

    lam: float = 1.0  # weight of the distance to the prototypes
    distance: Literal["mean", "sum"] = "mean"  # squares, over dimensions; sum: the squared norm
    inference: Literal["head", "prototype"] = "head"  # by head or by the nearest prototype
    exchange: bool = True  # False: prototypes are the client's own of its last round, none travel

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam < 0:
            raise CommunisError(f"fedproto needs lam >= 0, got {self.lam}")

    @property
    def needs(self) -> Needs:
        return Needs(exchange=self.exchange, models="one_embedding")

    def start_server(self, fleet: FleetView) -> Server:
        requirements.classes(fleet, "fedproto", "a prototype belongs to a class")
        size, classes = requirements.one_embedding(fleet, "fedproto"), fleet.task.classes
        return Server(C=torch.zeros(classes, size), n=torch.zeros(classes))

    def start_client(self, client: Client) -> Private:
        classes, size = client.card.sizes["classes"], client.card.sizes["embedding"]
        return Private(self._model(client), torch.zeros(classes, size), torch.zeros(classes))

    def down(self, server: Server, card: Card) -> Down:
        return Down(C=server.C, n=server.n)

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        state.model.load_into(client.model)
        return Private(state.model, down.C, down.n)

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        def loss(output: Output, batch: Batch) -> Tensor:
            y = client.task.labels(batch.target)
            known = (down.n[y] > 0).float()  # classes that some client has sent
            squares = (output.embedding - down.C[y]).square()
            distance = squares.mean(1) if self.distance == "mean" else squares.sum(1)
            regulariser = (known * distance).mean()
            task = client.task.loss(output.prediction, batch.target)
            return task + self.lam * regulariser  # Equation 7

        self.train(client, loss=loss if self.lam else None)
        return Private(self._model(client), down.C, down.n), Up(
            *class_sums(client, client.train, unit=False)
        )

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        C, n = ups.classwise(lambda up: up.sums, lambda up: up.counts)
        heard = n > 0
        return Server(C=torch.where(heard[:, None], C, server.C), n=torch.where(heard, n, server.n))

    def common(self, server: Server) -> dict[str, Tensor]:
        return {str(c): server.C[c] for c in server.n.nonzero().flatten().tolist()}

    def predict(self, client: Client, state: Private, batch: Batch) -> Tensor:
        output = client.model(batch)
        if self.inference == "head" or not bool((state.n > 0).any()):
            return output.prediction
        distance = torch.cdist(output.embedding, state.C)
        return (-distance).masked_fill(state.n == 0, -1e4)  # finite, so that scores stay numbers

    def _model(self, client: Client) -> State:
        return State.all(client.model)
