"""FedDyn. Acar et al., ICLR 2021, Algorithm 1.
https://arxiv.org/abs/2111.04263

Names follow the paper: theta is the model, g_k the stored gradient of client k, h the state of the
server, m the number of clients, alpha the weight of the regulariser.
Messages: Down(theta); Up(dtheta). dtheta is the change of theta on the client.
Deviation: the local minimisation consists of `epochs` passes of the local optimiser, as in the
    paper's experiments.
Deviation: BatchNorm's statistics, if they are averaged, have no g_k and no h; the server takes
    their plain mean.
Deviation: m and |P_t| are counted per parameter path, so clients may lack modalities. m counts the
    clients of the whole fleet, also on a graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from communis.core.contract import Card, Client, FleetView, Method, Model
from communis.core.errors import CommunisError
from communis.core.replies import Replies, uniform
from communis.core.state import State
from communis.methods.parts.sharing import Sharing, nonnegative_variances


@dataclass(frozen=True)
class Server:
    theta: State
    h: State
    m: State  # number of clients that own each path


@dataclass(frozen=True)
class Private:
    g_k: State  # gradient of the local loss at the last local model
    buffers: State


@dataclass(frozen=True)
class Down:
    theta: State


@dataclass(frozen=True)
class Up:
    dtheta: State  # theta_k - theta


@dataclass(frozen=True)
class FedDyn(Sharing, Method[Server, Private, Down, Up]):
    """A dynamic regulariser aligns the optima of the clients with the common optimum."""

    alpha: float = 0.1  # weight of the dynamic regulariser

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha <= 0:
            raise CommunisError(f"feddyn needs alpha > 0, got {self.alpha}")

    def start_server(self, fleet: FleetView) -> Server:
        m = State({path: torch.tensor(float(max(1, fleet.holders(path)))) for path in fleet.params})
        return Server(theta=self.initial(fleet), h=fleet.params.zeros(), m=m)

    def start_client(self, client: Client) -> Private:
        return Private(g_k=State.of(client.model).zeros(), buffers=self.keep(client))

    def down(self, server: Server, card: Card) -> Down:
        return Down(theta=server.theta.pick(card.shapes))

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        (state.buffers | down.theta).load_into(client.model)
        return state

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        def adjust(model: Model) -> None:
            # Gradient of -<g_k, theta> + alpha/2 |theta - theta^{t-1}|^2.
            for path, p in model.by_path[0].items():
                if p.grad is not None:
                    p.grad.sub_(state.g_k[path])
                    p.grad.add_(p.detach() - down.theta[path], alpha=self.alpha)

        self.train(client, adjust=adjust)
        dtheta = self.send(client) - down.theta
        g_k = state.g_k - dtheta.pick(state.g_k) * self.alpha  # first-order condition
        return Private(g_k, self.keep(client)), Up(dtheta)

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        total = ups.sum(lambda up: up.dtheta).pick(server.h)
        h = server.h - total / server.m * self.alpha
        mean = server.theta + ups.mean(lambda up: up.dtheta, by=uniform)
        theta = mean - h.pick(total) / self.alpha
        return Server(theta=nonnegative_variances(theta), h=h, m=server.m)
