"""Ditto. Li et al., ICML 2021, Algorithm 1.
https://arxiv.org/abs/2012.04221

Names follow the paper: w is the common model, v_k the personal model of client k, lam the weight of
the distance between them. The solver for w is FedAvg.
Messages: Down(w); Up(w). w is the federated part of the common model; v_k is not sent.
Deviation: a step on v_k is a step of the client's optimiser with the gradient of F_k(v_k) plus
    lam (v_k - w^t). With SGD it is the step of the paper.
Deviation: in the paper clients can also choose lam from {0.05, 0.1, 0.2} by validation. Here lam is
    one setting for all clients.
Deviation: v_k has its own BatchNorm statistics, to which the distance term does not apply.
Deviation: clients may lack modalities; v_k has the paths that its client owns.
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
    kept: State  # the tensors of the common model that stay on the client
    v: State  # v_k with its buffers


@dataclass(frozen=True)
class Ditto(Averaging, Method[Server, Private, Down, Up]):
    """FedAvg in which every client also trains a personal model, which is held near the common one
    and makes the predictions. lam = 0 trains the personal models alone."""

    lam: float = 1.0  # weight of the distance between the personal and the common model
    personal_epochs: int = 0  # epochs of the personal model per round; 0: `epochs`

    def __post_init__(self) -> None:
        super().__post_init__()
        requirements.at_least(self, lam=0, personal_epochs=0)
        if self.optimizer == "sgd" and self.lr * self.lam >= 2 * (1 + self.momentum):
            raise CommunisError(
                f"ditto: with lr = {self.lr} and lam = {self.lam} every step moves the personal "
                "model further away from the common model: reduce lr * lam below 2 (1 + momentum)"
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
        kept = self.keep(client)
        sent = self.send(client)
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
        """Loads v_k into the model, as the personal model makes the predictions. A newcomer has
        none, so that the common model makes them."""
        if not client.card.newcomer:
            state.v.load_into(client.model)
        prepared: Private = super().prepare(client, state)
        return prepared
