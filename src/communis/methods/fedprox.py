"""FedProx. Li et al., MLSys 2020, Algorithm 2.
https://arxiv.org/abs/1812.06127

Names follow the paper: w is the model, mu the weight of the proximal term.
Messages: Down(w); Up(w). w is the federated part of the model.
Deviation: there is no setting for the inexactness gamma of the local solver; each client trains
    `epochs` passes.
Deviation: clients are sampled uniformly and weighted by samples, as in FedAvg. The paper samples
    clients by weight and takes the plain mean (`uniform`).
"""

from __future__ import annotations

from dataclasses import dataclass

from communis.core.contract import Client, Model
from communis.core.errors import CommunisError
from communis.core.state import State
from communis.methods.fedavg import Down, FedAvg, Up


@dataclass(frozen=True)
class FedProx(FedAvg):
    """FedAvg with a local proximal term mu/2 |w - w_t|^2, which keeps clients near the common
    model. mu = 0 is FedAvg."""

    mu: float = 0.01  # weight of the proximal term

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu < 0:
            raise CommunisError(f"fedprox needs mu >= 0, got {self.mu}")

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        def adjust(model: Model) -> None:  # gradient of mu/2 |w - w_t|^2
            for path, p in model.by_path[0].items():
                if path in down.w and p.grad is not None:
                    p.grad.add_(p.detach() - down.w[path], alpha=self.mu)

        self.train(client, adjust=adjust if self.mu else None)
        return self.keep(client), Up(w=self.send(client))
