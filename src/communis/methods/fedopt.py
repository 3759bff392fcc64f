"""FedOpt: FedAdam and FedYogi. Reddi et al., ICLR 2021, Algorithm 2.
https://arxiv.org/abs/2003.00295

Names follow the paper: x is the model, Delta the pseudo-gradient, m and v its moments, tau the
adaptivity.
Messages: Down(x); Up(Delta). Delta is the change of x on the client.
Deviation: BatchNorm's statistics, if they are averaged, take no adaptive step; the server takes
    their plain mean.
Deviation: a path that no client of the cohort owns keeps x, m and v. FedAdagrad is not offered.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from communis.core.contract import Card, Client, FleetView, Method
from communis.core.errors import CommunisError
from communis.core.replies import Replies, uniform
from communis.core.state import State
from communis.methods.parts.sharing import Sharing, nonnegative_variances


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
    """The server uses the mean client update as a gradient for an adaptive optimiser."""

    server: Literal["adam", "yogi"] = "adam"  # the server's optimiser
    lr_server: float = 0.01  # eta, the server's learning rate, above 0
    beta1: float = 0.9  # decay of the first moment m, in [0, 1)
    beta2: float = 0.99  # decay of the second moment v, in [0, 1)
    tau: float = 1e-3  # adaptivity, above 0: added to the square root of v in the denominator

    def __post_init__(self) -> None:
        super().__post_init__()
        betas = 0 <= self.beta1 < 1 and 0 <= self.beta2 < 1
        if self.lr_server <= 0 or self.tau <= 0 or not betas:
            raise CommunisError(
                "fedopt needs lr_server > 0, tau > 0, and beta1 and beta2 in [0, 1), got "
                f"lr_server={self.lr_server}, tau={self.tau}, beta1={self.beta1}, "
                f"beta2={self.beta2}"
            )

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
        mean = ups.mean(lambda up: up.Delta, by=uniform)
        Delta = mean.pick(server.m)
        statistics = mean.pick(path for path in mean if path not in server.m)
        m = server.m.pick(Delta) * self.beta1 + Delta * (1 - self.beta1)
        square = Delta * Delta
        if self.server == "adam":
            v = server.v.pick(Delta) * self.beta2 + square * (1 - self.beta2)
        else:
            sign = (server.v.pick(Delta) - square).map(torch.sign)
            v = server.v.pick(Delta) - square * sign * (1 - self.beta2)
        step = m / (v.map(torch.sqrt) + self.tau) * self.lr_server
        x = server.x + step + statistics
        return Server(x=nonnegative_variances(x), m=server.m | m, v=server.v | v)
