"""Harmony. Ouyang et al., MobiSys 2023: modality-wise federated learning, then fusion learning.
https://doi.org/10.1145/3581791.3596844

Stage 1 is one FedAvg per modality, of its encoder and a unimodal classifier that serves only then.
Stage 2 starts from these encoders and trains fusion and head.
Deviation: nothing is federated in stage 2, as RELIEF describes Harmony: fusion and head stay with
    their client. The original clusters clients by how far their encoders have moved (modality
    bias) and averages fusion and head within a cluster.
Deviation: encoders are fine-tuned on their client in stage 2, as in the authors' public code, but
    at a share of the learning rate (`finetune`) instead of a rate of their own.
Deviation: a client with one modality trains fusion and head too; there it keeps its classifier.
Deviation: a node's resources are not balanced between its modalities: all train in every round.
Deviation: means are weighted by the windows that have the modality; `uniform` is the public code's.
Deviation: until a client has trained fusion, its predictions are the mean of the unimodal ones.
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
from communis.methods.parts.sharing import Sharing, sound
from communis.models.network import MLP


@dataclass(frozen=True)
class Server:
    w: State  # encoders and unimodal classifiers
    rounds: int  # aggregated so far
    served: Tensor  # (clients,) bool: has trained in stage 2 and needs nothing any more


@dataclass(frozen=True)
class Private:
    model: State  # all of it; what comes down replaces its part
    fuses: bool  # has trained fusion and head


@dataclass(frozen=True)
class Down:
    w: State
    stage2: bool


@dataclass(frozen=True)
class Harmony(Sharing, Method[Server, Private, Down, Up]):
    """First every modality is learnt by itself, federated; then every client fuses its own."""

    stage1: int = 20  # rounds of modality-wise learning; fusion is learnt in those after them
    finetune: float = 0.1  # share of lr at which encoders train in stage 2; 0: they stay as learnt
    uniform: bool = False  # weigh all clients alike instead of by the windows that have a modality

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
        """In stage 2 nothing."""
        return Sent(self.travels(card), optional=self.travels(card))

    def start_server(self, fleet: FleetView) -> Server:
        w = self.initial(fleet)
        return Server(w, rounds=0, served=torch.zeros(len(fleet.cards), dtype=torch.bool))

    def start_client(self, client: Client) -> Private:
        return Private(State.all(client.model), fuses=False)

    def down(self, server: Server, card: Card) -> Down:
        wanted = () if server.served[card.id] else card.shapes
        return Down(server.w.pick(wanted), stage2=server.rounds >= self.stage1)

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        (state.model | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        wise = modality_wise(client.card.params)
        if down.stage2:
            own = [p for p in client.card.params if not p.startswith("unimodal.")]
            own = [p for p in own if self.finetune or p not in wise]
            self.train(client, paths=own, rates=dict.fromkeys(wise, self.finetune))
        else:
            self.train(
                client, loss=lambda out, batch: unimodal_loss(client, out, batch), paths=wise
            )
        sent = self.send(client)
        return Private(State.all(client.model), down.stage2), Up(State() if down.stage2 else sent)

    def common(self, server: Server) -> State:
        return server.w

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        served = server.served.clone()  # who answered is all that is read of single messages
        served[[card.id for card, _ in ups.each()]] = server.rounds >= self.stage1
        means = ups.mean(lambda up: up.w, by=uniform if self.uniform else presence)
        w = server.w | sound(means) if server.rounds < self.stage1 else server.w
        return Server(w, server.rounds + 1, served)

    def predict(self, client: Client, state: Private, batch: Batch) -> Tensor:
        output = client.model(batch)
        return output.prediction if state.fuses else unimodal_mean(client, output, batch)


def modality_wise(paths: Iterable[str]) -> list[str]:
    return [path for path in paths if modality_of(path)]


def unimodal_loss(client: Client, output: Output, batch: Batch) -> Tensor:
    """The sum of the losses of all modalities, each on the windows that have it. They share no
    parameter, so this trains each by itself."""
    losses = []
    for m, h in output.features.items():
        there = batch.present[m]
        said = client.model.unimodal[m](h[there])
        losses.append(client.task.loss(said, batch.target[there]) if len(said) else said.sum())
    return torch.stack(losses).sum()


def unimodal_mean(client: Client, output: Output, batch: Batch) -> Tensor:
    """The mean of what the modalities predict that are present; zeros where none is."""
    said = torch.stack([client.model.unimodal[m](h) for m, h in output.features.items()])
    there = torch.stack([batch.present[m] for m in output.features])[..., None]
    return (said * there).sum(0) / there.sum(0).clamp_min(1)
