"""MOON. Li et al., CVPR 2021, Algorithm 1.
https://arxiv.org/abs/2103.16257

Names follow the paper: z, z_glob, z_prev representations under the current, the received and the
last local model.
Deviation: the representation is the model's embedding; no projection head is added.
Deviation: the two models of the contrast run in evaluation mode.
Deviation: in a client's first round its last local model is the received one, so the contrast is
constant.
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
    """FedAvg whose clients keep their representation near the common model's and away from their
    own last one."""

    mu: float = 1.0  # weight of the contrast
    tau: float = 0.5  # temperature

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu < 0 or self.tau <= 0:
            raise CommunisError(f"moon needs mu >= 0 and tau > 0, got {self.mu} and {self.tau}")

    def start_client(self, client: Client) -> State:
        return State.buffers(client.model)

    def keep(self, client: Client) -> State:
        """The last local model; what `adopt` receives takes the place of its parameters."""
        return State.all(client.model)

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        glob = copy.deepcopy(client.model).eval()
        prev = copy.deepcopy(glob)
        state.load_into(prev)

        def loss(output: Output, batch: Batch) -> Tensor:
            with torch.no_grad():
                z_glob, z_prev = glob(batch).embedding, prev(batch).embedding
            near = F.cosine_similarity(output.embedding, z_glob) / self.tau
            far = F.cosine_similarity(output.embedding, z_prev) / self.tau
            contrast = -F.log_softmax(torch.stack([near, far], 1), 1)[:, 0].mean()
            return client.task.loss(output.prediction, batch.target) + self.mu * contrast

        self.train(client, loss=loss if self.mu else None)
        return self.keep(client), Up(w=self.send(client))
