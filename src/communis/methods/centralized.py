"""Centralized. One model is trained on the pooled training windows of all clients: a reference for
the score without federation.

The raw windows count as uplink bytes in the first round. The windows of each client keep the
normalisation of that client, and a modality that the client lacks is marked absent in them.
Messages: Down(w, buffers); Up(w, buffers). They stay on the server, which trains on the pooled
    windows itself; what the clients send are these windows.
Deviation: none; there is no paper. Unlike in the federated methods, clients are scored with the
    BatchNorm statistics of the pooled model, as they have no statistics of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from communis.core.contract import Card, Client, FleetView, Method, Needs
from communis.core.replies import Replies
from communis.core.state import State
from communis.methods.parts.training import Recipe


@dataclass(frozen=True)
class Server:
    w: State
    buffers: Mapping[str, Tensor]  # BatchNorm statistics; empty before the first round


@dataclass(frozen=True)
class Down:
    w: State
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True)
class Up:
    w: State
    buffers: Mapping[str, Tensor]


@dataclass(frozen=True)
class Centralized(Recipe, Method[Server, State, Down, Up]):
    """One pooled client trains one model on the windows of all clients; every client is scored with
    this model."""

    @property
    def needs(self) -> Needs:
        return Needs(raw_data=True)

    def start_server(self, fleet: FleetView) -> Server:
        return Server(w=fleet.params, buffers={})

    def start_client(self, client: Client) -> State:
        return State.buffers(client.model)

    def down(self, server: Server, card: Card) -> Down:
        return Down(w=server.w.pick(card.params), buffers=server.buffers)

    def adopt(self, client: Client, state: State, down: Down) -> State:
        pooled = State(down.buffers).pick(state)
        (state | pooled | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        self.train(client)
        return state, Up(w=State.of(client.model), buffers=State.buffers(client.model))

    def common(self, server: Server) -> State:
        return server.w

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        ((_, up),) = ups.each()  # the pooled client is the only one
        return Server(w=up.w, buffers=up.buffers)
