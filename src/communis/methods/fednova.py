"""FedNova. Wang et al., NeurIPS 2020, Equations 5 to 8.
https://arxiv.org/abs/2007.07481

Names follow the paper: x is the model, d_i the normalised update, a_1 = |a_i|_1 the accumulated
weight of the local gradients.
Messages: Down(x); Up(d, a_1).
Deviation: the variants with a proximal term and with server momentum are not offered.
Deviation: BatchNorm's statistics, if they are averaged, are not normalised; the server takes their
    mean, weighted by samples.
Deviation: p_i and tau_eff are computed per path over the participating clients that own the path.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch

from communis.core.contract import Card, Client, FleetView, Method, UpMessage
from communis.core.errors import CommunisError
from communis.core.replies import Replies, samples
from communis.core.state import State
from communis.methods.parts.sharing import Sharing, is_statistic, nonnegative_variances

MOST = 1e9  # largest |a_i|_1 that a client may report


@dataclass(frozen=True)
class Server:
    x: State


@dataclass(frozen=True)
class Down:
    x: State


@dataclass(frozen=True)
class Up(UpMessage):
    d: State  # (x - x_i) / |a_i|_1, including the learning rate; for statistics x - x_i
    a_1: float  # |a_i|_1

    def check(self, card: Card, method: FedNova) -> None:
        if not 1 <= self.a_1 <= MOST:
            raise CommunisError(f"a_1 is {self.a_1}; it must be in [1, {MOST:g}]")

    def repaired(self) -> Self:
        return replace(self, a_1=min(MOST, max(1.0, self.a_1)))


@dataclass(frozen=True)
class FedNova(Sharing, Method[Server, State, Down, Up]):
    """The server averages normalised updates, so that clients that take more local steps do not
    bias the mean towards their own optimum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer != "sgd":
            raise CommunisError(
                "fednova's normalisation is that of SGD, with or without momentum: "
                "set optimizer = 'sgd'"
            )

    def start_server(self, fleet: FleetView) -> Server:
        return Server(x=self.initial(fleet))

    def start_client(self, client: Client) -> State:
        return self.keep(client)

    def down(self, server: Server, card: Card) -> Down:
        return Down(x=server.x.pick(card.shapes))

    def adopt(self, client: Client, state: State, down: Down) -> State:
        (state | down.x).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        steps = self.train(client).steps
        a_1 = self.weight(max(1, steps))
        change = down.x - self.send(client)
        d = State({p: t if is_statistic(p) else t / a_1 for p, t in change.items()})
        return self.keep(client), Up(d=d, a_1=a_1)

    def weight(self, tau: int) -> float:
        """Returns |a_i|_1 after tau steps of SGD with momentum rho:
        [tau - rho (1 - rho^tau) / (1 - rho)] / (1 - rho)."""
        rho = self.momentum
        a_1 = (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
        return max(1.0, a_1)  # one step gives exactly 1, which rounding may miss

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        d = ups.mean(lambda up: up.d, by=samples)  # sum_i p_i d_i
        tau_eff = ups.mean(_a_1, by=samples)  # sum_i p_i |a_i|_1
        return Server(x=nonnegative_variances(server.x - d * tau_eff))


def _a_1(up: Up) -> State:
    """Returns |a_i|_1 for every path, so that its mean is also taken over the owners of the path.
    The value is 1 for statistics, which take no steps."""
    return State({p: torch.tensor(1.0 if is_statistic(p) else up.a_1) for p in up.d})
