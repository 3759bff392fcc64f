"""Local. Every client trains its own model alone and sends nothing: the baseline that a federated
method should exceed.

Messages: none.
Deviation: none; there is no paper.
"""

from __future__ import annotations

from dataclasses import dataclass

from communis.core.contract import Card, Client, FleetView, Method, Needs
from communis.core.replies import Replies
from communis.core.state import State
from communis.methods.parts.training import Recipe


@dataclass(frozen=True)
class Local(Recipe, Method[None, State, None, None]):
    """Every client trains alone; nothing is sent. Any mix of models and sensors is possible."""

    @property
    def needs(self) -> Needs:
        return Needs(models="any")

    def start_server(self, fleet: FleetView) -> None:
        return None

    def start_client(self, client: Client) -> State:
        return State.all(client.model)

    def down(self, server: None, card: Card) -> None:
        return None

    def adopt(self, client: Client, state: State, down: None) -> State:
        state.load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: None) -> tuple[State, None]:
        self.train(client)
        return State.all(client.model), None

    def aggregate(self, server: None, ups: Replies[None]) -> None:
        return None
