"""FedAvg. McMahan et al., AISTATS 2017, Algorithm 1.
https://arxiv.org/abs/1602.05629

Names follow the paper: w the model, n_k a client's samples.
Deviation: the mean runs key-wise over the clients that own a path, so clients may lack modalities.
Deviation: buffers (BatchNorm statistics) are not averaged; they stay with their client.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from communis.core import Card, Client, FleetView, Method, Replies
from communis.local import Recipe
from communis.state import State


@dataclass(frozen=True)
class Server:
    w: State


@dataclass(frozen=True)
class Down:
    w: State


@dataclass(frozen=True)
class Up:
    w: State


@dataclass(frozen=True)
class FedAvg(Recipe, Method[Server, State, Down, Up]):
    """Every client trains the common model; the server takes the mean, weighted by samples."""

    uniform: bool = False  # weigh all clients alike instead of by samples

    def shares(self, path: str) -> bool:
        """Whether a path is federated; the others stay with their client, as buffers do."""
        return not path.startswith("private.")

    def shared(self, paths: Iterable[str]) -> list[str]:
        return [path for path in paths if self.shares(path)]

    def sends(self, card: Card) -> list[str]:
        return self.shared(card.params)

    def start_server(self, fleet: FleetView) -> Server:
        return Server(w=fleet.params.pick(self.shared(fleet.params)))

    def start_client(self, client: Client) -> State:
        return self.keep(client)

    def keep(self, client: Client) -> State:
        """The private part of the client's model."""
        private = [path for path in client.card.params if not self.shares(path)]
        return State.of(client.model, private) | State.buffers(client.model)

    def down(self, server: Server, card: Card) -> Down:
        return Down(w=server.w.pick(card.params))

    def adopt(self, client: Client, state: State, down: Down) -> State:
        (state | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        self.train(client)  # ClientUpdate(k, w)
        return self.keep(client), Up(w=State.of(client.model, self.sends(client.card)))

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        mean = ups.mean(lambda up: up.w, by_samples=not self.uniform)  # sum_k n_k/n w_k
        return Server(w=server.w | mean)
