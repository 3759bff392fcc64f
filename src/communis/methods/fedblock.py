"""FedAvg with a learning rate per block: the control for cohort-wise aggregation.
https://arxiv.org/abs/1602.05629 is the averaging; the factor undoes what its zeros do.

Names: N clients, C_m those that have the sensor m. Every client has the whole model, and the plain
mean over all of them takes the branch of m only |C_m|/N as far as the mean over C_m would, because
the others send it back as they got it. Here the clients of C_m train it with the learning rate
times N/|C_m|. What a cohort-wise method gains over this is more than a larger step.
After one local step of any optimiser the result is that of cohort-wise averaging: the factor is on
the rate, not on the gradient, whose size Adam would divide out again. After several it is not: the
branch is further along when the next gradient is taken.
Deviation: N and |C_m| count the fleet's clients that train, not those of a round; weighted by
    samples if `uniform` is off.
Deviation: with `weight_decay` absent branches shrink too, which no factor undoes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from communis.core.contract import Card, Client, FleetView, Method, Needs
from communis.core.errors import CommunisError
from communis.core.groups import group_of, modality_of_group
from communis.core.replies import Replies, samples, uniform
from communis.core.state import State
from communis.methods.fedavg import Averaging, Up


@dataclass(frozen=True)
class Server:
    w: State
    rates: dict[str, Tensor]  # N/|C_m| by modality


@dataclass(frozen=True)
class Down:
    w: State
    rates: dict[str, Tensor]  # of the client's own modalities


@dataclass(frozen=True)
class FedBlock(Averaging, Method[Server, State, Down, Up]):
    """FedAvg of whole models in which rare sensors' branches train with a larger learning rate."""

    uniform: bool = True  # weigh all clients alike instead of by samples

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ema != "none":
            raise CommunisError("fedblock: ema goes by who has a branch, but here everybody has")

    @property
    def needs(self) -> Needs:
        return Needs(all_branches=True)

    def start_server(self, fleet: FleetView) -> Server:
        weigh = uniform if self.uniform else samples
        owned: dict[str, float] = {}
        for card in fleet.cards:
            for m in card.modalities if card.samples else ():
                owned[m] = owned.get(m, 0.0) + weigh(card, "")
        total = sum(weigh(card, "") for card in fleet.cards if card.samples)
        rates = {m: torch.tensor(total / n) for m, n in sorted(owned.items())}
        return Server(w=self.initial(fleet), rates=rates)

    def start_client(self, client: Client) -> State:
        return self.keep(client)

    def down(self, server: Server, card: Card) -> Down:
        rates = {m: server.rates[m] for m in card.modalities if m in server.rates}
        return Down(w=server.w.pick(card.shapes), rates=rates)

    def adopt(self, client: Client, state: State, down: Down) -> State:
        (state | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        modalities = {path: modality_of_group(group_of(path)) for path in client.card.params}
        rates = {p: float(down.rates[m]) for p, m in modalities.items() if m in down.rates}
        self.train(client, rates=rates)
        return self.keep(client), Up(w=self.send(client))

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        return Server(w=self.merge(server.w, ups), rates=server.rates)
