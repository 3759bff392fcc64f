"""MOON. Li et al., CVPR 2021, Algorithm 1.
https://arxiv.org/abs/2103.16257

Names follow the paper: z, z_glob and z_prev are the representations of the current, the received
and the last local model.
Messages: Down(w); Up(w). w is the federated part of the model.
Deviation: the representation is the model's embedding; no projection head is added.
Deviation: the received and the last local model run in evaluation mode.
Deviation: in a client's first round its last local model has the received parameters. Unless
    BatchNorm's statistics are averaged, the contrastive loss is therefore constant.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from communis.core.contract import Batch, Client, Output
from communis.core.errors import CommunisError
from communis.core.state import State
from communis.methods.fedavg import Down, FedAvg, Up


@dataclass(frozen=True)
class Moon(FedAvg):
    """FedAvg with a local contrastive loss, which keeps the representation near that of the common
    model and away from that of the client's last model."""

    mu: float = 1.0  # weight of the contrastive loss
    tau: float = 0.5  # temperature of the contrastive loss

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu < 0 or self.tau <= 0:
            raise CommunisError(f"moon needs mu >= 0 and tau > 0, got {self.mu} and {self.tau}")

    def start_client(self, client: Client) -> State:
        return State.buffers(client.model)

    def keep(self, client: Client) -> State:
        """Returns the complete local model. In the next round `adopt` replaces the parameters that
        it receives."""
        return State.all(client.model)

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        glob = copy.deepcopy(client.model).eval()
        prev = copy.deepcopy(glob)
        state.load_into(prev)

        def loss(output: Output, batch: Batch) -> Tensor:
            z = output.embedding
            with torch.no_grad():
                z_glob = glob(batch).embedding
                z_prev = prev(batch).embedding
            positive = F.cosine_similarity(z, z_glob) / self.tau
            negative = F.cosine_similarity(z, z_prev) / self.tau
            contrast = -F.log_softmax(torch.stack([positive, negative], 1), 1)[:, 0].mean()
            return client.task.loss(output.prediction, batch.target) + self.mu * contrast

        self.train(client, loss=loss if self.mu else None)
        return self.keep(client), Up(w=self.send(client))
