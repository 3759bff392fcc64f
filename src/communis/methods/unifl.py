"""UniFL: the modality-wise stage of Harmony alone. Ouyang et al., MobiSys 2023.
https://doi.org/10.1145/3581791.3596844

This is CoMFed's baseline "Harmony-UniFL": one FedAvg per modality, of a complete unimodal network.
Messages: Down(w); Up(w). w holds the unimodal networks of the client's modalities.
Deviation: a network consists of the model's encoder and of a fusion and a head for that modality
    alone. The model's own fusion and head, for all modalities, are not used and are not trained.
Deviation: all modalities of a client train in every round, each on the windows that have it.
Deviation: means are weighted by these windows; `uniform` gives the mean of the public code.
Deviation: the paper does not define the treatment of BatchNorm statistics; see `buffers`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from communis.core.contract import Batch, Card, Client, FleetView, Method, Model, Task, modality_of
from communis.core.replies import Replies, presence, uniform
from communis.core.state import State
from communis.methods.harmony import modality_wise, unimodal_loss, unimodal_mean
from communis.methods.parts.sharing import Sharing, nonnegative_variances, recalibrate


@dataclass(frozen=True)
class Networks:
    """The state of the server, and the message in both directions."""

    w: State  # the unimodal networks


@dataclass(frozen=True)
class UniFL(Sharing, Method[Networks, State, Networks, Networks]):
    """Clients train a separate federated network for every modality; a client with several
    modalities averages their logits."""

    uniform: bool = False  # give all clients equal weight instead of weighting them by the windows
    # that have the modality

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
        paths = modality_wise(client.card.params)
        self.train(client, loss=lambda out, batch: unimodal_loss(client, out, batch), paths=paths)
        return self.keep(client), Networks(self.send(client))

    def needs_to_predict(self, card: Card) -> list[str]:
        return self.shared(super().needs_to_predict(card))

    def common(self, server: Networks) -> State:
        return server.w

    def aggregate(self, server: Networks, ups: Replies[Networks]) -> Networks:
        by = uniform if self.uniform else presence
        return Networks(server.w | nonnegative_variances(ups.mean(lambda up: up.w, by=by)))

    def prepare(self, client: Client, state: State) -> State:
        def networks(batch: Batch) -> Tensor:
            # The forward pass matters, not the loss.
            return unimodal_loss(client, client.model(batch), batch)

        if self.buffers == "recalibrate":
            recalibrate(client, networks)
        return state

    def predict(self, client: Client, state: State, batch: Batch) -> Tensor:
        return unimodal_mean(client, client.model(batch), batch)
