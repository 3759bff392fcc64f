"""RELIEF: resource-efficient multimodal edge federated learning, 2026 (no public address known).

Names follow the paper: w the model in groups j (groups.py): the fusion's blocks A_m, its shared
part B, layers of encoders and head; M_n a device's modalities, G_n the groups that it can use, S_n
those that it trains, k_n how many; d_j how far apart those are who trained a group, dbar_j the same
smoothed; tau_n seconds per group, T_o seconds besides, T the target T*.
Deviation: T* "by binary search to minimise the longest round" leaves the slowest device its
    mandatory blocks alone. Ours is the least that lets all train max(|M_n|, ceil(coverage |G_n|))
    groups: coverage = 0 is the paper's rule, 1 trains everything; or it is given in `seconds`.
    tau_n shares the forward pass among all groups, so who trains few of them takes longer than T*.
Deviation: of V2 and V3 the paper says that they share a budget and are faster than RELIEF, because
    its mandatory set raises the least workload. With `mandatory = false` no block has to be
    trained, |M_n| in Equation 7 is 1, and T* is the least that lets all train
    max(1, ceil(coverage |G_n|)) groups; without the 1 the shortest round is one in which nobody
    trains. For a device with one sensor, the slowest of the paper's fleet, |M_n| is 1 anyway.
Deviation: the first round, in which everybody trains all it can, is one of the run's rounds; the
    paper has it before its R rounds.
Deviation: models with LoRA have none in the head, which trains whole; the paper's has.
Deviation: Equations 4 and 5, and the mean of the head, run over those who trained the group in this
    round. With fewer than two dbar_j stays; a group that never had two, such as one device's own,
    counts as the median. With partial participation only the first cohort trains everything.
Deviation: a device gets and runs G_n, not the whole model on zeros. Values travel instead of
    differences (the server knows what it sent); S_n is told by their names, M_n by the card.
Deviation: with random allocation devices draw S_n themselves, of the size that they are told.
Deviation: devices without a profile count as equally fast; coverage cuts among equal ones too.
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
from communis.methods import fedavg
from communis.methods.fedavg import w_of
from communis.methods.parts import elastic
from communis.methods.parts.sharing import Sharing, is_statistic, sound

A, B = "fusion.blocks.", "fusion.shared."
log = logging.getLogger("communis")


@dataclass(frozen=True)
class Server:
    w: State
    dbar: State  # smoothed divergence, by group
    k: Tensor  # (N,) budgets
    round: int  # rounds so far


@dataclass(frozen=True)
class Down:
    w: State  # of G_n
    train: Tensor  # S_n: a bit for every group of G_n


@dataclass(frozen=True)
class Up(fedavg.Up, UpMessage):
    """The groups that were trained, each of them whole."""

    def check(self, card: Card, method: Relief) -> None:
        for group, paths in groups(card.params).items():
            if 0 < sum(path in self.w for path in paths) < len(paths):
                raise CommunisError(f"group {group} is incomplete")


@dataclass(frozen=True)
class Relief(Sharing, Method[Server, State, Down, Up]):
    """Groups are averaged among those who trained them; slow devices train the disputed ones."""

    elastic: bool = True  # False (V1): everybody trains all it can use
    cohorts: bool = True  # False (V2): who did not train a group counts as having left it as it was
    allocation: Literal["divergence", "random"] = "divergence"  # random (V3): any groups
    mandatory: bool = True  # False (V2, V3): no fusion block has to be trained, nor fit in budgets
    coverage: float = 0.6  # share of its groups that even the slowest device trains
    seconds: float = 0.0  # T*, a round's target; 0: by `coverage`
    overhead: float = 0.0  # T_o, seconds of a round that are not training; for `seconds`
    gamma: float = 0.9  # weight of the new divergence in the smoothed one
    per_param: bool = False  # divergence per parameter, so that large groups are not favoured

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.coverage <= 1 or not 0 < self.gamma <= 1:
            raise CommunisError(f"coverage and gamma are shares, got {self.coverage}, {self.gamma}")
        if not 0 <= self.overhead <= self.seconds:
            raise CommunisError(f"0 <= overhead <= seconds, got {self.overhead}, {self.seconds}")

    def sends(self, card: Card) -> Sent:
        """Of parameters only what was trained."""
        return Sent(self.travels(card), optional=self.shared(card.params))

    def start_server(self, fleet: FleetView) -> Server:
        requirements.blocks(fleet, "relief")
        if self.seconds:
            requirements.devices(fleet, "relief's seconds")
        return Server(self.initial(fleet), State(), torch.from_numpy(self._budgets(fleet)), 0)

    def _budgets(self, fleet: FleetView) -> Array:
        """Equation 7."""
        G_n = np.array([len(groups(card.params)) for card in fleet.cards])
        M_n = np.array([len(card.modalities) if self.mandatory else 1 for card in fleet.cards])
        pace = [fleet.pace(card) for card in fleet.cards]
        windows = np.array([self.passes(card.samples) for card in fleet.cards])
        forward, group = windows * np.array([(p.forward, p.group) for p in pace]).T
        tau_n = forward / G_n + group
        least = np.where(windows > 0, elastic.least(self.coverage, M_n, G_n), 0)
        T = self.seconds or elastic.target(tau_n, least, self.overhead)
        late = np.flatnonzero(self.overhead + forward + M_n * group > T).tolist()
        if late and self.elastic and self.seconds:
            what = "their fusion blocks" if self.mandatory else "one group"
            log.warning("clients %s need longer than %g s for %s alone: they train"
                        " no less, and every round waits for them", late, T, what)  # fmt: skip
        return elastic.budget(T, tau_n, M_n, G_n, self.overhead) if self.elastic else G_n

    def start_client(self, client: Client) -> State:
        return self.keep(client)

    def down(self, server: Server, card: Card) -> Down:
        G_n = list(groups(card.params))
        mandatory = [j for j in G_n if self.mandatory and j.startswith(A)]
        k_n = int(server.k[card.id]) if server.round else len(G_n)  # at first all of them
        S_n = elastic.allocate(G_n, mandatory, k_n, {j: float(d) for j, d in server.dbar.items()})
        bits = np.packbits([j in S_n for j in G_n])
        return Down(server.w.pick(card.shapes), torch.from_numpy(bits))

    def adopt(self, client: Client, state: State, down: Down) -> State:
        (state | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        owned = groups(client.card.params)
        chosen = np.flatnonzero(np.unpackbits(down.train.cpu().numpy(), count=len(owned)))
        if self.allocation == "random":
            chosen = client.generator("allocation").permutation(len(owned))[: len(chosen)]
        S_n = [path for i, paths in enumerate(owned.values()) if i in chosen for path in paths]
        client.log.update({diagnostics.TRAINED.of(j): 1.0 for j in groups(S_n)})
        self.train(client, paths=S_n)
        sent = self.send(client).pick([*S_n, *self.statistics(client.card)])
        return self.keep(client), Up(w=sent)

    def common(self, server: Server) -> State:
        return server.w

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        means = sound(ups.mean(w_of, by=_weight if self.cohorts else uniform))  # Equations 3 and 4
        if not self.cohorts:
            n = ups.sum(lambda up: up.w.map(lambda _: torch.ones(())))
            shares = {path: float(count) / len(ups) for path, count in n.items()}
            means = State({p: torch.lerp(server.w[p], means[p], shares[p]) for p in means})
        dbar, owned = dict(server.dbar), groups(p for p in server.w if not is_statistic(p))
        for j, apart in divergence(ups, _parameters).items():  # Equation 5
            size = sum(server.w[path].numel() for path in owned[j]) if self.per_param else 1
            d = apart / size
            dbar[j] = torch.lerp(dbar[j], d, self.gamma) if j in dbar else d  # Equation 6
        return Server(server.w | means, State(dbar), server.k, server.round + 1)

    def notes(self, server: Server, node: int) -> dict[str, float]:
        notes = {diagnostics.BUDGET.of(n): float(k) for n, k in enumerate(server.k)}
        return notes | {diagnostics.DIVERGENCE.of(j): float(d) for j, d in server.dbar.items()}


def _parameters(up: Up) -> State:
    """What was sent, without the statistics of BatchNorm: these are not trained."""
    return State({path: t for path, t in up.w.items() if not is_statistic(path)})


def _weight(card: Card, path: str) -> float:
    """w_n of Equation 4 for B; the others are plain means."""
    return float(len(card.modalities) if path.startswith(B) else 1)
