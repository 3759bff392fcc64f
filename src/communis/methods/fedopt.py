"""FedOpt: FedAdam and FedYogi. Reddi et al., ICLR 2021, Algorithm 2.
https://arxiv.org/abs/2003.00295

Names follow the paper: x the model, Delta the pseudo-gradient, m and v its moments, tau the
adaptivity.
Deviation: BatchNorm's statistics, if they are averaged, take no adaptive step: their plain mean.
Deviation: a path that nobody in the cohort owns keeps x, m and v. FedAdagrad is not offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from communis.core.contract import Card, Client, FleetView, Method
from communis.core.errors import CommunisError
from communis.core.replies import Replies, uniform
from communis.core.state import State
from communis.methods.parts.sharing import Sharing, sound


@dataclass(frozen=True)
class Server:
    x: State
    m: State
    v: State


@dataclass(frozen=True)
class Down:
    x: State


@dataclass(frozen=True)
class Up:
    Delta: State  # x_i - x


@dataclass(frozen=True)
class FedOpt(Sharing, Method[Server, State, Down, Up]):
    """The server treats the mean client update as a gradient and takes an adaptive step with it."""

    server: Literal["adam", "yogi"] = "adam"  # the server's optimiser
    lr_server: float = 0.01  # eta, the server's learning rate
    beta1: float = 0.9  # decay of m
    beta2: float = 0.99  # decay of v
    tau: float = 1e-3  # adaptivity

    def __post_init__(self) -> None:
        super().__post_init__()
        betas = 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1
        if self.lr_server <= 0 or self.tau <= 0 or not betas:
            raise CommunisError("fedopt needs lr_server and tau > 0 and beta1, beta2 in [0, 1)")

    def start_server(self, fleet: FleetView) -> Server:
        zeros = fleet.params.zeros()
        return Server(self.initial(fleet), m=zeros, v=zeros + self.tau**2)  # v_{-1} >= tau^2

    def start_client(self, client: Client) -> State:
        return self.keep(client)

    def down(self, server: Server, card: Card) -> Down:
        return Down(x=server.x.pick(card.shapes))

    def adopt(self, client: Client, state: State, down: Down) -> State:
        (state | down.x).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        self.train(client)
        return self.keep(client), Up(Delta=self.send(client) - down.x)

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        heard = ups.mean(lambda up: up.Delta, by=uniform)
        Delta = heard.pick(server.m)
        told = heard.pick(path for path in heard if path not in server.m)
        m = server.m.pick(Delta) * self.beta1 + Delta * (1 - self.beta1)
        square = Delta * Delta
        if self.server == "adam":
            v = server.v.pick(Delta) * self.beta2 + square * (1 - self.beta2)
        else:
            sign = (server.v.pick(Delta) - square).map(torch.sign)
            v = server.v.pick(Delta) - square * sign * (1 - self.beta2)
        x = server.x + m / (v.map(torch.sqrt) + self.tau) * self.lr_server + told
        return Server(x=sound(x), m=server.m | m, v=server.v | v)
