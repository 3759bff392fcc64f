"""Harmony. Ouyang et al., MobiSys 2023: modality-wise federated learning, then fusion learning.
https://doi.org/10.1145/3581791.3596844

Stage 1 is one FedAvg per modality, of its encoder and a unimodal classifier that is used only in
this stage. Stage 2 starts from these encoders and trains fusion and head.
Messages: Down(w, stage2); Up(w). w holds encoders and unimodal classifiers. In stage 2 Up.w is
    empty, and so is Down.w once the client has answered in this stage.
Deviation: nothing is federated in stage 2, following RELIEF's description of Harmony: fusion and
    head stay on the client. The original clusters clients by the movement of their encoders
    (modality bias) and averages fusion and head within a cluster.
Deviation: clients fine-tune their encoders in stage 2, as in the authors' public code, but with a
    share of the learning rate (`finetune`) instead of a separate learning rate.
Deviation: a client with one modality also trains fusion and head. In the original it keeps its
    unimodal classifier.
Deviation: a client's resources are not balanced between its modalities. All of them train in every
    round.
Deviation: means are weighted by the windows that have the modality; `uniform` gives the mean of the
    public code.
Deviation: until a client has trained its fusion, it predicts with the mean of the unimodal
    predictions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from communis.core.contract import (
    Batch,
    Card,
    Client,
    FleetView,
    Method,
    Model,
    Output,
    Sent,
    Task,
    modality_of,
)
from communis.core.errors import CommunisError
from communis.core.replies import Replies, presence, uniform
from communis.core.state import State
from communis.methods.fedavg import Up
from communis.methods.parts.sharing import Sharing, nonnegative_variances
from communis.models.network import MLP


@dataclass(frozen=True)
class Server:
    w: State  # encoders and unimodal classifiers
    rounds: int  # number of rounds aggregated so far
    served: Tensor  # (clients,) bool: has trained in stage 2 and needs no more downlinks


@dataclass(frozen=True)
class Private:
    model: State  # the complete model; received tensors replace their part of it
    fuses: bool  # whether fusion and head were trained


@dataclass(frozen=True)
class Down:
    w: State
    stage2: bool


@dataclass(frozen=True)
class Harmony(Sharing, Method[Server, Private, Down, Up]):
    """First the clients train a federated network for every modality; then every client trains its
    own fusion."""

    stage1: int = 20  # rounds of modality-wise training; the rounds after them train the fusion
    finetune: float = 0.1  # learning rate of encoders in stage 2, relative to lr; 0: frozen
    uniform: bool = False  # give all clients equal weight instead of weighting them by the windows
    # that have the modality

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.stage1 < 1 or self.finetune < 0:
            raise CommunisError(
                "harmony needs stage1 >= 1 and finetune >= 0, got "
                f"stage1={self.stage1}, finetune={self.finetune}"
            )

    def equip(self, model: Model, task: Task) -> None:
        for m, size in model.feature_sizes.items():
            model.unimodal[m] = MLP((size, task.outputs))

    def shares(self, path: str) -> bool:
        return bool(modality_of(path))

    def sends(self, card: Card) -> Sent:
        """Makes all paths optional, as nothing is sent in stage 2."""
        return Sent(self.travels(card), optional=self.travels(card))

    def start_server(self, fleet: FleetView) -> Server:
        w = self.initial(fleet)
        return Server(w, rounds=0, served=torch.zeros(len(fleet.cards), dtype=torch.bool))

    def start_client(self, client: Client) -> Private:
        return Private(State.all(client.model), fuses=False)

    def down(self, server: Server, card: Card) -> Down:
        paths = () if server.served[card.id] else card.shapes
        return Down(server.w.pick(paths), stage2=server.rounds >= self.stage1)

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        (state.model | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        paths = modality_wise(client.card.params)
        if down.stage2:
            trained = [p for p in client.card.params if not p.startswith("unimodal.")]
            if not self.finetune:
                trained = [p for p in trained if p not in paths]
            self.train(client, paths=trained, rates=dict.fromkeys(paths, self.finetune))
        else:
            self.train(
                client, loss=lambda out, batch: unimodal_loss(client, out, batch), paths=paths
            )
        w = self.send(client)
        return Private(State.all(client.model), down.stage2), Up(State() if down.stage2 else w)

    def needs_to_predict(self, card: Card) -> list[str]:
        """Without a fusion, encoders and unimodal classifiers suffice."""
        return self.shared(super().needs_to_predict(card))

    def common(self, server: Server) -> State:
        return server.w

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        served = server.served.clone()
        # Of single messages, only the sender is read.
        served[[card.id for card, _ in ups.each()]] = server.rounds >= self.stage1
        means = ups.mean(lambda up: up.w, by=uniform if self.uniform else presence)
        w = server.w
        if server.rounds < self.stage1:
            w = w | nonnegative_variances(means)
        return Server(w, server.rounds + 1, served)

    def predict(self, client: Client, state: Private, batch: Batch) -> Tensor:
        output = client.model(batch)
        return output.prediction if state.fuses else unimodal_mean(client, output, batch)


def modality_wise(paths: Iterable[str]) -> list[str]:
    """Returns the paths that belong to a single modality: encoders and unimodal networks."""
    return [path for path in paths if modality_of(path)]


def unimodal_loss(client: Client, output: Output, batch: Batch) -> Tensor:
    """Returns the sum of the losses of all modalities, each over the windows that have it. The
    modalities share no parameters, so this trains each network by itself."""
    losses = []
    for m, h in output.features.items():
        rows = batch.present[m]
        prediction = client.model.unimodal[m](h[rows])
        if len(prediction):
            losses.append(client.task.loss(prediction, batch.target[rows]))
        else:
            losses.append(prediction.sum())  # zero, with a gradient of zero
    return torch.stack(losses).sum()


def unimodal_mean(client: Client, output: Output, batch: Batch) -> Tensor:
    """Returns the mean of the predictions of the present modalities, or zeros if there is none."""
    predictions = torch.stack([client.model.unimodal[m](h) for m, h in output.features.items()])
    present = torch.stack([batch.present[m] for m in output.features])[..., None]
    return (predictions * present).sum(0) / present.sum(0).clamp_min(1)
