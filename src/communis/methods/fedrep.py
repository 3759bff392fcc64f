"""FedRep. Collins et al., ICML 2021, Algorithm 1.
https://arxiv.org/abs/2102.07078

Names follow the paper: phi the shared representation, h the local head.
Deviation: the mean is weighted by samples, as in FedAvg; the paper's is plain (`uniform`).
Deviation: both phases go through the windows in the same order.
Deviation: head and representation train for whole epochs, as in the paper's experiments, instead of
single gradient steps.
"""

from __future__ import annotations

from dataclasses import dataclass

from communis.core.contract import Client
from communis.core.state import State
from communis.methods.fedavg import Down, Up
from communis.methods.fedper import FedPer


@dataclass(frozen=True)
class FedRep(FedPer):
    """The head is fitted to the received representation first, then the representation to the head;
    only the latter is shared."""

    head_epochs: int = 5  # tau, passes for the head before the representation trains

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        phi = self.travels(client.card)
        h = [path for path in client.card.params if path not in phi]
        self.train(client, paths=h, epochs=self.head_epochs)
        self.train(client, paths=phi)
        return self.keep(client), Up(w=self.send(client))
