"""CARING. Li et al., IEEE Transactions on Mobile Computing 2023; FedCaring in FedAPA's tables.
https://doi.org/10.1109/TMC.2023.3242324

Names: w is the model, as in FedAvg; a_k is the accuracy that client k reports for the model that it
sends.
Messages: Down(w); Up(w, a). w is the federated part of the model.
Deviation: the implementation follows the paper's abstract and its description in FedAPA (Section
    VI-C): two weights, 1 and 0.3, by local performance. The texts do not state which client gets
    which weight. Our decision: the weight is 1 if a_k on the client's own training windows is at
    least the median of the cohort.
Deviation: the paper's activity-related representation of CSI is left to the dataset.
Deviation: the fine-tuning of the deployed model is not part of this method; see wifederated.py.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Self

import torch

from communis.core import requirements
from communis.core.contract import Card, Client, FleetView, Method, UpMessage
from communis.core.diagnostics import Diagnostic
from communis.core.errors import CommunisError
from communis.core.replies import Replies, samples, uniform
from communis.core.state import State
from communis.methods import fedavg
from communis.methods.fedavg import Down, FedAvg, Server, w_of
from communis.methods.parts.sharing import nonnegative_variances
from communis.methods.parts.training import note_forward

TRAIN_ACCURACY = Diagnostic("train_accuracy", "accuracy", "of the client on its training windows")


@dataclass(frozen=True)
class Up(fedavg.Up, UpMessage):
    w: State
    a: float  # a_k, after training

    def check(self, card: Card, method: Caring) -> None:
        if not 0 <= self.a <= 1:
            raise CommunisError(f"a is {self.a}; an accuracy must be in [0, 1]")

    def repaired(self) -> Self:
        return replace(self, a=min(1.0, max(0.0, self.a)))


@dataclass(frozen=True)
class Caring(FedAvg, Method[Server, State, Down, Up]):
    """FedAvg with a lower weight for clients whose model fits their own training windows worse than
    the median. low = 1 is the plain mean."""

    uniform: bool = True  # false: a client's weight is also multiplied by its number of samples
    low: float = 0.3  # weight, from 0 to 1, of a client whose accuracy is below the cohort's median

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.low <= 1:
            raise CommunisError(f"caring needs low in [0, 1], got {self.low}")
        if self.ema != "none":
            raise CommunisError("caring defines its own weights: set ema = 'none'")

    def start_server(self, fleet: FleetView) -> Server:
        requirements.classes(fleet, "caring", "clients report their accuracy")
        return super().start_server(fleet)

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        self.train(client)
        a = accuracy(client)
        client.log[TRAIN_ACCURACY.name] = a
        return self.keep(client), Up(w=self.send(client), a=a)

    def aggregate(self, server: Server, ups: Replies[Any]) -> Server:
        a = {card.id: up.a for card, up in ups.each()}
        a_median = median(a.values())
        by = uniform if self.uniform else samples

        def weight(card: Card, path: str) -> float:
            return by(card, path) * (1.0 if a[card.id] >= a_median else self.low)

        return Server(w=server.w | nonnegative_variances(ups.mean(w_of, by=weight)))


@torch.no_grad()
def accuracy(client: Client, batch: int = 512) -> float:
    """Returns the accuracy of the client's model on its training windows, in evaluation mode."""
    note_forward(client, client.train)
    client.model.eval()
    correct = 0
    for rows in torch.split(torch.arange(len(client.train)), batch):
        windows = client.train.batch(rows)
        predicted = client.model(windows).prediction.argmax(1)
        correct += int((predicted == client.task.labels(windows.target)).sum())
    return correct / len(client.train)
