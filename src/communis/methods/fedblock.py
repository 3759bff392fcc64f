"""FedAvg with a learning rate per block: the control for cohort-wise aggregation.
The averaging is that of https://arxiv.org/abs/1602.05629.

Names: N is the number of clients, C_m the set of clients that have the sensor m. Every client has
the complete model. The plain mean over all clients moves the branch of m only by the share |C_m|/N
of the step of the mean over C_m, because the other clients send the branch back unchanged. This
method compensates: the clients of C_m train the branch with the learning rate times N/|C_m|. The
gain of a cohort-wise method over this control is therefore not the effect of a larger step.
After one local step of any optimiser the result equals that of cohort-wise averaging. The factor
applies to the learning rate and not to the gradient, whose scale Adam would remove. After several
steps the results differ, because the second gradient is taken at a point further along.
Messages: Down(w, rates); Up(w). w is the federated part of the model.
Deviation: N and |C_m| count the clients of the fleet that have training windows, not the clients of
    a round. With `uniform` = false they are weighted by samples.
Deviation: with `weight_decay` the branches of absent sensors shrink too. The factor does not
    compensate for this.
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
    rates: dict[str, Tensor]  # N/|C_m| of the client's own modalities


@dataclass(frozen=True)
class FedBlock(Averaging, Method[Server, State, Down, Up]):
    """FedAvg of complete models in which the branches of rare sensors train with a larger learning
    rate."""

    uniform: bool = True  # give all clients equal weight instead of weighting them by samples

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ema != "none":
            raise CommunisError(
                "fedblock: ema depends on which clients have a branch, but here all clients have "
                "all branches: set ema = 'none'"
            )

    @property
    def needs(self) -> Needs:
        return Needs(all_branches=True)

    def start_server(self, fleet: FleetView) -> Server:
        weigh = uniform if self.uniform else samples
        C: dict[str, float] = {}  # |C_m|
        N = 0.0
        for card in fleet.cards:
            if not card.samples:
                continue
            N += weigh(card, "")
            for m in card.modalities:
                C[m] = C.get(m, 0.0) + weigh(card, "")
        rates = {m: torch.tensor(N / C_m) for m, C_m in sorted(C.items())}
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
        rates = {}
        for path in client.card.params:
            m = modality_of_group(group_of(path))
            if m in down.rates:
                rates[path] = float(down.rates[m])
        self.train(client, rates=rates)
        return self.keep(client), Up(w=self.send(client))

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        return Server(w=self.merge(server.w, ups), rates=server.rates)
