"""FedRoD. Chen and Chao, ICLR 2022, Equations 6 to 9 (linear personalised head).
https://arxiv.org/abs/2107.00778

Names follow the paper: the G-head is shared, the P-head is personal.
Messages: Down(w); Up(w). w is the model without the P-head.
Deviation: the P-head is linear or, with `deep`, has the layers of the shared head. The paper's
    hypernetwork variant is not offered.
Deviation: the class-balanced loss of the G-head is balanced softmax (Ren et al. 2020), one of the
    paper's options.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from communis.core import requirements
from communis.core.contract import Batch, Card, Client, FleetView, Model, Output, Task
from communis.core.state import State
from communis.methods.fedavg import Down, FedAvg, Server, Up
from communis.models.network import MLP


@dataclass(frozen=True)
class FedRoD(FedAvg):
    """The shared head trains with a class-balanced loss, the personal head with the loss of the
    client's own data; the prediction is the sum of both logits."""

    deep: bool = False  # the personal head has the hidden layers of the shared head; false: it is
    # linear

    def equip(self, model: Model, task: Task) -> None:
        super().equip(model, task)
        sizes = model.head_sizes if self.deep else (model.embedding_size, task.outputs)
        model.private["head"] = MLP(sizes)

    def start_server(self, fleet: FleetView) -> Server:
        requirements.classes(fleet, "fedrod", "it balances classes")
        return super().start_server(fleet)

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        labels = client.task.labels(client.train.target)
        counts = torch.bincount(labels, minlength=client.task.classes)
        log_prior = counts.to(torch.float32).log()  # -inf for absent classes, which are no targets

        def loss(output: Output, batch: Batch) -> Tensor:
            y = client.task.labels(batch.target)
            z_G = output.prediction
            z_P = client.model.private["head"](output.embedding.detach())
            L_G = F.cross_entropy(z_G + log_prior, y)
            L_P = F.cross_entropy(z_G.detach() + z_P, y)
            return L_G + L_P

        self.train(client, loss=loss)
        return self.keep(client), Up(w=self.send(client))

    def needs_to_predict(self, card: Card) -> list[str]:
        return self.shared(super().needs_to_predict(card))

    def predict(self, client: Client, state: State, batch: Batch) -> Tensor:
        output = client.model(batch)
        if client.card.newcomer:  # it has no P-head
            return output.prediction
        personal: Tensor = client.model.private["head"](output.embedding)
        return output.prediction + personal
