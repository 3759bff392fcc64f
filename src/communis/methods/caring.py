"""CARING. Li et al., IEEE Transactions on Mobile Computing 2023; FedCaring in FedAPA's tables.
https://doi.org/10.1109/TMC.2023.3242324

Names: w the model, as in FedAvg; a_k the accuracy that client k reports of the model it sends.
Deviation: follows the paper's abstract and what FedAPA says of it (Section VI-C): two weights, 1
    and 0.3, by local performance. These leave open who gets which. Our decision: 1 for those whose
    a_k on their own training windows is at least the median of the cohort.
Deviation: how CSI becomes the paper's activity-related representation is a matter of the dataset.
Deviation: the fine-tuning of the model where it is deployed is not part of it, see wifederated.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Self

import torch

from communis.core import requirements
from communis.core.contract import Card, Client, FleetView, Method, UpMessage
from communis.core.errors import CommunisError
from communis.core.replies import Replies, samples, uniform
from communis.core.state import State
from communis.methods import fedavg
from communis.methods.fedavg import Down, FedAvg, Server, w_of
from communis.methods.parts.sharing import sound
from communis.methods.parts.training import note_forward


@dataclass(frozen=True)
class Up(fedavg.Up, UpMessage):
    a: float  # a_k, after training

    def check(self, card: Card, method: Caring) -> None:
        if not 0 <= self.a <= 1:
            raise CommunisError(f"a is {self.a}; an accuracy lies between 0 and 1")

    def repaired(self) -> Self:
        return replace(self, a=min(1.0, max(0.0, self.a)))


@dataclass(frozen=True)
class Caring(FedAvg, Method[Server, State, Down, Up]):
    """FedAvg in which models that do not fit their own client's windows well count less. low = 1 is
    the plain mean."""

    uniform: bool = True  # False: a client's weight is also multiplied by its samples
    low: float = 0.3  # weight of a client whose accuracy is below the cohort's median

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.low <= 1:
            raise CommunisError(f"caring needs low from 0 to 1, got {self.low}")
        if self.ema != "none":
            raise CommunisError("caring has weights of its own: set ema = 'none'")

    def start_server(self, fleet: FleetView) -> Server:
        requirements.classes(fleet, "caring", "clients report their accuracy")
        return super().start_server(fleet)

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        self.train(client)
        a = client.log["train_accuracy"] = accuracy(client)
        return self.keep(client), Up(w=self.send(client), a=a)

    def aggregate(self, server: Server, ups: Replies[Any]) -> Server:
        a = {card.id: up.a for card, up in ups.each()}
        middle, by = median(a.values()), uniform if self.uniform else samples

        def weight(card: Card, path: str) -> float:
            return by(card, path) * (1.0 if a[card.id] >= middle else self.low)

        return Server(w=server.w | sound(ups.mean(w_of, by=weight)))


@torch.no_grad()
def accuracy(client: Client, batch: int = 512) -> float:
    """The share of its training windows that the client's model gets right, in evaluation mode."""
    note_forward(client, client.train)
    client.model.eval()
    right = 0
    for part in map(client.train.batch, torch.split(torch.arange(len(client.train)), batch)):
        predicted = client.model(part).prediction.argmax(1)
        right += int((predicted == client.task.labels(part.target)).sum())
    return right / len(client.train)
