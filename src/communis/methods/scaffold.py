"""SCAFFOLD. Karimireddy et al., ICML 2020, Algorithm 1, option II.
https://arxiv.org/abs/1910.06378

Names follow the paper: x is the global model, y the local model, c and c_i are control variates, N
is the number of clients.
Messages: Down(x, c); Up(dy, dc). dy and dc are the changes of y and c_i.
Deviation: BatchNorm's statistics, if they are averaged, do not use eta_g; the server takes their
    plain mean. Their control variates stay zero but are sent.
Deviation: |S| and N are counted per parameter path, so clients may lack modalities. N counts the
    clients of the whole fleet, also on a graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from communis.core.contract import Card, Client, FleetView, Method, Model
from communis.core.errors import CommunisError
from communis.core.replies import Replies, uniform
from communis.core.state import State
from communis.methods.parts.sharing import Sharing, is_statistic, nonnegative_variances


@dataclass(frozen=True)
class Server:
    x: State
    c: State
    N: State  # number of clients that own each path


@dataclass(frozen=True)
class Private:
    c_i: State
    buffers: State


@dataclass(frozen=True)
class Down:
    x: State
    c: State


@dataclass(frozen=True)
class Up:
    dy: State  # y_i - x
    dc: State  # c_i+ - c_i


@dataclass(frozen=True)
class Scaffold(Sharing, Method[Server, Private, Down, Up]):
    """Control variates correct the client drift in every local step. Messages have twice the bytes
    of FedAvg."""

    lr_server: float = 1.0  # eta_g, the server's learning rate, above 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer != "sgd" or self.momentum:
            raise CommunisError(
                "scaffold's control variates assume plain SGD: "
                "set optimizer = 'sgd' and momentum = 0"
            )
        if self.lr_server <= 0:
            raise CommunisError(f"scaffold needs lr_server > 0, got {self.lr_server}")

    def start_server(self, fleet: FleetView) -> Server:
        x = self.initial(fleet)
        N = State({path: torch.tensor(float(max(1, fleet.holders(path)))) for path in x})
        return Server(x=x, c=x.zeros(), N=N)

    def start_client(self, client: Client) -> Private:
        travelling = State.of(client.model, self.travels(client.card))
        return Private(c_i=travelling.zeros(), buffers=self.keep(client))

    def down(self, server: Server, card: Card) -> Down:
        return Down(x=server.x.pick(card.shapes), c=server.c.pick(card.shapes))

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        (state.buffers | down.x).load_into(client.model)
        return state

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        c_i = state.c_i

        def adjust(model: Model) -> None:  # line 10: g(y) - c_i + c
            for path, p in model.by_path[0].items():
                if p.grad is not None:
                    p.grad.add_(down.c[path] - c_i[path])

        steps = self.train(client, adjust=adjust).steps
        y = self.send(client)
        c_new = c_i
        if steps:
            change = (down.x - y).pick(client.card.params)
            c_new = c_i - down.c + change / (steps * self.lr)  # line 12
        up = Up(dy=y - down.x, dc=c_new - c_i)  # line 13
        return Private(c_new, self.keep(client)), up

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        dx = ups.mean(lambda up: up.dy, by=uniform)  # line 16: 1/|S|
        dc = ups.sum(lambda up: up.dc) / server.N  # line 17: |S|/N of the mean
        eta_g = State({p: torch.tensor(1.0 if is_statistic(p) else self.lr_server) for p in dx})
        x = nonnegative_variances(server.x + dx * eta_g)
        return Server(x=x, c=server.c + dc, N=server.N)
