"""RELIEF: resource-efficient multimodal edge federated learning, 2026 (no public address known).

Names follow the paper: w is the model. Its groups j (groups.py) are the fusion's blocks A_m, the
fusion's shared part B, and the layers of encoders and head. M_n are the modalities of device n, G_n
the groups that it can use, S_n the groups that it trains, k_n their number. d_j is the divergence
of a group, the spread of the values among the devices that trained it; dbar_j is its moving
average. tau_n is the time per group in seconds, T_o the remaining time of a round, T the target T*.
Messages: Down(w, train); Up(w). Down has the groups in G_n and one bit for each of them, Up the
    groups in S_n.
Deviation: the paper finds T* "by binary search to minimise the longest round", which leaves the
    slowest device only its mandatory blocks. Here T* is the shortest time in which every device
    can train max(|M_n|, ceil(coverage |G_n|)) groups: coverage = 0 is the paper's rule, coverage =
    1 trains everything. `seconds` sets T* directly. tau_n distributes the forward pass over all
    groups, so a device that trains few groups takes longer than T*.
Deviation: according to the paper, V2 and V3 have the same budget as RELIEF and are faster, because
    the mandatory set of RELIEF raises the least workload. With `mandatory = false` no block has to
    be trained, |M_n| in Equation 7 is 1, and T* is the shortest time in which every device can
    train max(1, ceil(coverage |G_n|)) groups. Without the 1, no device would train in the shortest
    round. For a device with one sensor, as the slowest of the paper's fleet, |M_n| is 1 anyway.
Deviation: the first round, in which every device trains all its groups, is one of the run's rounds.
    The paper has it before its R rounds.
Deviation: models with LoRA have no LoRA in the head, which trains completely; the head of the paper
    has LoRA.
Deviation: Equations 4 and 5 and the mean of the head are taken over the devices that trained the
    group in this round. With fewer than two such devices dbar_j is unchanged. A group that never
    had two, such as a group that only one device owns, counts as the median. With partial
    participation only the first cohort trains everything.
Deviation: a device receives and runs G_n, not the complete model on zeros. It sends values instead
    of differences, as the server knows the values that it sent. The names of the sent paths define
    S_n, and the card has M_n.
Deviation: with random allocation devices draw S_n themselves, with the size that the server sends.
Deviation: devices without a profile are treated as equally fast. The coverage also applies to
    equally fast devices.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from communis.core import diagnostics, requirements
from communis.core.arrays import Array
from communis.core.contract import Card, Client, FleetView, Method, Sent, UpMessage
from communis.core.errors import CommunisError
from communis.core.groups import divergence, groups
from communis.core.replies import Replies, uniform
from communis.core.state import State
from communis.methods.fedavg import w_of
from communis.methods.parts import elastic
from communis.methods.parts.sharing import Sharing, is_statistic, nonnegative_variances

A = "fusion.blocks."
B = "fusion.shared."
log = logging.getLogger("communis")


@dataclass(frozen=True)
class Server:
    w: State
    dbar: State  # smoothed divergence, by group
    k: Tensor  # (N,): the budget k_n of each device, in groups
    round: int  # number of rounds so far


@dataclass(frozen=True)
class Down:
    w: State  # the groups in G_n
    train: Tensor  # S_n: one bit for every group in G_n


@dataclass(frozen=True)
class Up(UpMessage):
    w: State  # the groups in S_n, each of them complete

    def check(self, card: Card, method: Relief) -> None:
        for group, paths in groups(card.params).items():
            if 0 < sum(path in self.w for path in paths) < len(paths):
                raise CommunisError(f"group {group} is incomplete")


@dataclass(frozen=True)
class Relief(Sharing, Method[Server, State, Down, Up]):
    """The server averages each group over the devices that trained it; slow devices train the
    groups with the largest divergence."""

    elastic: bool = True  # train only as many groups as fit into the round's target time; false
    # (V1): every device trains all its groups
    cohorts: bool = True  # average a group over the devices that trained it; false (V2): over all
    # devices of the round, where those that did not train it count with the unchanged group
    allocation: Literal["divergence", "random"] = "divergence"  # the groups that a device trains;
    # divergence: those with the largest divergence; random (V3): drawn by the device
    mandatory: bool = True  # the fusion blocks of a device's sensors are always trained; false (V2,
    # V3): they are treated as any other group
    coverage: float = 0.6  # share, from 0 to 1, of its groups that even the slowest device can
    # train in the target time
    seconds: float = 0.0  # T*, target time of a round in seconds; 0: follows from coverage
    overhead: float = 0.0  # T_o, seconds of a round in which nothing is trained; only with
    # seconds, and not more than it
    gamma: float = 0.9  # weight, in (0, 1], of a round's divergence in the moving average
    per_param: bool = False  # divide the divergence by the number of parameters, so that large
    # groups are not favoured

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.coverage <= 1 or not 0 < self.gamma <= 1:
            raise CommunisError(
                "relief needs coverage in [0, 1] and gamma in (0, 1], got "
                f"{self.coverage} and {self.gamma}"
            )
        if not 0 <= self.overhead <= self.seconds:
            raise CommunisError(
                "relief needs 0 <= overhead <= seconds, got "
                f"overhead={self.overhead}, seconds={self.seconds}"
            )

    def sends(self, card: Card) -> Sent:
        """Allows a message to lack parameters, as devices send only those that they trained."""
        return Sent(self.travels(card), optional=self.shared(card.params))

    def start_server(self, fleet: FleetView) -> Server:
        requirements.blocks(fleet, "relief")
        if self.seconds:
            requirements.devices(fleet, "relief's seconds")
        return Server(self.initial(fleet), State(), torch.from_numpy(self._budgets(fleet)), 0)

    def _budgets(self, fleet: FleetView) -> Array:
        """Returns k_n of all devices."""
        G_n = np.array([len(groups(card.params)) for card in fleet.cards])
        if not self.elastic:
            return G_n
        M_n = np.array([len(card.modalities) if self.mandatory else 1 for card in fleet.cards])
        costs = [fleet.pace(card) for card in fleet.cards]
        windows = np.array([self.passes(card.samples) for card in fleet.cards])
        forward = windows * np.array([cost.forward for cost in costs])
        group = windows * np.array([cost.group for cost in costs])
        tau_n = forward / G_n + group
        least = np.where(windows > 0, elastic.least(self.coverage, M_n, G_n), 0)
        T = self.seconds or elastic.target(tau_n, least, self.overhead)
        late = np.flatnonzero(self.overhead + forward + M_n * group > T).tolist()
        if late and self.seconds:
            log.warning(
                "clients %s need longer than %g s for %s alone: they train no less, and every "
                "round waits for them",
                late,
                T,
                "their fusion blocks" if self.mandatory else "one group",
            )
        return elastic.budget(T, tau_n, M_n, G_n, self.overhead)  # Equation 7

    def start_client(self, client: Client) -> State:
        return self.keep(client)

    def down(self, server: Server, card: Card) -> Down:
        G_n = list(groups(card.params))
        mandatory = [j for j in G_n if self.mandatory and j.startswith(A)]
        k_n = int(server.k[card.id]) if server.round else len(G_n)  # all groups in the first round
        dbar = {j: float(d) for j, d in server.dbar.items()}
        S_n = elastic.allocate(G_n, mandatory, k_n, dbar)  # line 10
        bits = np.packbits([j in S_n for j in G_n])
        return Down(server.w.pick(card.shapes), torch.from_numpy(bits))

    def adopt(self, client: Client, state: State, down: Down) -> State:
        (state | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        G_n = groups(client.card.params)
        chosen = np.flatnonzero(np.unpackbits(down.train.cpu().numpy(), count=len(G_n)))
        if self.allocation == "random":
            chosen = client.generator("allocation").permutation(len(G_n))[: len(chosen)]
        S_n = [j for i, j in enumerate(G_n) if i in chosen]
        trained = [path for j in S_n for path in G_n[j]]
        client.log.update({diagnostics.TRAINED.of(j): 1.0 for j in S_n})
        self.train(client, paths=trained)  # Equation 2, over S_n
        sent = self.send(client).pick([*trained, *self.statistics(client.card)])
        return self.keep(client), Up(w=sent)  # Equation 8

    def common(self, server: Server) -> State:
        return server.w

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        weight = _weight if self.cohorts else uniform
        means = nonnegative_variances(ups.mean(w_of, by=weight))  # Equations 3 and 4
        if not self.cohorts:
            senders = ups.sum(lambda up: up.w.map(lambda _: torch.ones(())))
            shares = {path: float(count) / len(ups) for path, count in senders.items()}
            means = State({p: torch.lerp(server.w[p], means[p], shares[p]) for p in means})
        dbar = dict(server.dbar)
        paths = groups(path for path in server.w if not is_statistic(path))
        for j, spread in divergence(ups, _parameters).items():  # Equation 5
            size = sum(server.w[path].numel() for path in paths[j]) if self.per_param else 1
            d_j = spread / size
            dbar[j] = torch.lerp(dbar[j], d_j, self.gamma) if j in dbar else d_j  # Equation 6
        return Server(server.w | means, State(dbar), server.k, server.round + 1)

    def notes(self, server: Server, node: int) -> dict[str, float]:
        notes = {diagnostics.BUDGET.of(n): float(k) for n, k in enumerate(server.k)}
        return notes | {diagnostics.DIVERGENCE.of(j): float(d) for j, d in server.dbar.items()}


def _parameters(up: Up) -> State:
    """Returns the sent parameters, without BatchNorm's statistics, which are not trained."""
    return State({path: t for path, t in up.w.items() if not is_statistic(path)})


def _weight(card: Card, path: str) -> float:
    """Returns w_n of Equation 4 for B, and equal weights for all other paths."""
    return float(len(card.modalities) if path.startswith(B) else 1)
