"""UniFL: the modality-wise stage of Harmony alone. Ouyang et al., MobiSys 2023.
https://doi.org/10.1145/3581791.3596844

CoMFed's baseline "Harmony-UniFL": one FedAvg per modality, of a whole unimodal network.
Deviation: a network is the model's encoder with a fusion and a head for that modality alone; the
    model's own fusion and head, which serve all modalities, are not used and stay as they began.
Deviation: all modalities of a client train in every round, each on the windows that have it.
Deviation: means are weighted by these windows; `uniform` is the public code's.
Deviation: the paper does not say what becomes of BatchNorm statistics: `buffers`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from communis.core.contract import Batch, Card, Client, FleetView, Method, Model, Task, modality_of
from communis.core.replies import Replies, presence, uniform
from communis.core.state import State
from communis.methods.harmony import modality_wise, unimodal_loss, unimodal_mean
from communis.methods.parts.sharing import Sharing, recalibrate, sound


@dataclass(frozen=True)
class Networks:
    """What the server has, and what travels either way."""

    w: State  # the unimodal networks


@dataclass(frozen=True)
class UniFL(Sharing, Method[Networks, State, Networks, Networks]):
    """Every modality is learnt by itself, federated; who has several averages their logits."""

    uniform: bool = False  # weigh all clients alike instead of by the windows that have a modality

    def equip(self, model: Model, task: Task) -> None:
        for m in model.feature_sizes:
            model.unimodal[m] = model.branch(m)

    def shares(self, path: str) -> bool:
        return bool(modality_of(path))

    def start_server(self, fleet: FleetView) -> Networks:
        return Networks(w=self.initial(fleet))

    def start_client(self, client: Client) -> State:
        return self.keep(client)

    def down(self, server: Networks, card: Card) -> Networks:
        return Networks(server.w.pick(card.shapes))

    def adopt(self, client: Client, state: State, down: Networks) -> State:
        (state | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Networks) -> tuple[State, Networks]:
        wise = modality_wise(client.card.params)
        self.train(client, loss=lambda out, batch: unimodal_loss(client, out, batch), paths=wise)
        return self.keep(client), Networks(self.send(client))

    def common(self, server: Networks) -> State:
        return server.w

    def aggregate(self, server: Networks, ups: Replies[Networks]) -> Networks:
        by = uniform if self.uniform else presence
        return Networks(server.w | sound(ups.mean(lambda up: up.w, by=by)))

    def prepare(self, client: Client, state: State) -> State:
        def networks(batch: Batch) -> Tensor:
            return unimodal_loss(client, client.model(batch), batch)  # for the pass alone

        if self.buffers == "recalibrate":
            recalibrate(client, networks)
        return state

    def predict(self, client: Client, state: State, batch: Batch) -> Tensor:
        return unimodal_mean(client, client.model(batch), batch)
