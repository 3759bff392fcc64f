"""FedRep. Collins et al., ICML 2021, Algorithm 1.
https://arxiv.org/abs/2102.07078

Names follow the paper: phi is the shared representation, h the local head.
Messages: Down(w); Up(w). w is phi.
Deviation: the mean is weighted by samples, as in FedAvg; the mean of the paper is not (`uniform`).
Deviation: both phases use the windows in the same order.
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
    """Every client first trains its head on the received representation, then the representation
    with the head fixed. Only the representation is shared."""

    head_epochs: int = 5  # tau, epochs of the head before the representation trains

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        phi = self.travels(client.card)
        h = [path for path in client.card.params if path not in phi]
        self.train(client, paths=h, epochs=self.head_epochs)
        self.train(client, paths=phi)
        return self.keep(client), Up(w=self.send(client))
