"""Ditto. Li et al., ICML 2021, Algorithm 1.
https://arxiv.org/abs/2012.04221

Names follow the paper: w the common model, v_k a client's personal model, lam the weight of its
distance to w. The solver for w is FedAvg.
Deviation: a step on v_k is one of the client's optimiser, whose gradient is that of F_k(v_k) plus
    lam (v_k - w^t); with SGD it is the paper's.
Deviation: the paper's clients also choose lam by themselves, from {0.05, 0.1, 0.2} by validation;
    here it is one setting for all.
Deviation: v_k has BatchNorm statistics of its own, which nothing pulls.
Deviation: clients may lack modalities: v_k has the paths that its client owns.
"""

from __future__ import annotations

from dataclasses import dataclass

from communis.core import requirements
from communis.core.contract import Card, Client, FleetView, Method, Model
from communis.core.errors import CommunisError
from communis.core.replies import Replies
from communis.core.state import State
from communis.methods.fedavg import Averaging, Down, Server, Up


@dataclass(frozen=True)
class Private:
    kept: State  # of the common model: what stays with the client
    v: State  # v_k, all of it


@dataclass(frozen=True)
class Ditto(Averaging, Method[Server, Private, Down, Up]):
    """Beside FedAvg's model every client trains one of its own, held near the common one, and
    predicts with it. lam = 0 is training alone."""

    lam: float = 1.0  # weight of the distance between the personal and the common model
    personal_epochs: int = 0  # passes for the personal model; 0: `epochs`

    def __post_init__(self) -> None:
        super().__post_init__()
        requirements.at_least(self, lam=0, personal_epochs=0)
        if self.optimizer == "sgd" and self.lr * self.lam >= 2 * (1 + self.momentum):
            raise CommunisError(
                f"ditto: with lr = {self.lr} and lam = {self.lam} every step takes the personal "
                "model further away from the common one: lower lr * lam below 2 (1 + momentum)"
            )

    def start_server(self, fleet: FleetView) -> Server:
        return Server(w=self.initial(fleet))

    def start_client(self, client: Client) -> Private:
        return Private(self.keep(client), v=State.all(client.model))  # v_k^0 = w^0

    def down(self, server: Server, card: Card) -> Down:
        return Down(w=server.w.pick(card.shapes))

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        (state.kept | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        def adjust(model: Model) -> None:
            for path, p in model.by_path[0].items():
                if path in down.w and p.grad is not None:
                    p.grad.add_(p.detach() - down.w[path], alpha=self.lam)  # lam (v_k - w^t)

        self.train(client)  # w_k^t
        kept, sent = self.keep(client), self.send(client)
        state.v.load_into(client.model)
        self.train(
            client,
            adjust=adjust if self.lam else None,
            epochs=self.personal_epochs or None,
            memory="v",
        )
        return Private(kept, v=State.all(client.model)), Up(w=sent)

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        return Server(w=self.merge(server.w, ups))

    def prepare(self, client: Client, state: Private) -> Private:
        """Predictions are those of v_k."""
        state.v.load_into(client.model)
        prepared: Private = super().prepare(client, state)
        return prepared
