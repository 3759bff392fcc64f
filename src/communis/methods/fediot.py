"""FedIoT. Zhao, Barnaghi and Haddadi, Multimodal federated learning on IoT data, IoTDI 2022.
https://arxiv.org/abs/2109.04833

Details after the authors' code, yuchenzhao/iotdi22-mmfl: the split autoencoder rebuilds every
modality from the code of each, and clients with several modalities count alpha times in the mean.
Deviation: encoders are the model's own, decoders dense with one narrow hidden layer (there: an
    LSTM layer each), and one step serves all codes (there: a step for each).
Deviation: the classifier is the model's fusion and head, trained with all modalities and with each
    alone, to serve any of them (there: one linear layer on the code of whichever one it is).
Deviation: the owner of the public windows trains the classifier, on the encoders that it got, and
    sends it; in the paper the server does, on the new ones. In a graph only neighbours hear of it.
Deviation: means go by the windows that have the modality; in the code all clients have as many.
Deviation: BatchNorm statistics are those of `buffers`, also of the fusion: a client's windows pass
    the common classifier while the autoencoders train.
Deviation: the deep canonically correlated autoencoder (DCCAE), the paper's other one, is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from communis.core import requirements
from communis.core.contract import (
    Batch,
    Card,
    Client,
    FleetView,
    Method,
    Model,
    Needs,
    Output,
    Sent,
    Task,
    UpMessage,
    modality_of,
)
from communis.core.errors import CommunisError
from communis.core.replies import Replies, presence
from communis.core.state import State
from communis.methods import fedavg
from communis.methods.fedavg import Down, Server
from communis.methods.parts.sharing import Sharing, sound
from communis.models.network import MLP


@dataclass(frozen=True)
class Up(fedavg.Up, UpMessage):
    """All autoencoders, and of the owner of the public windows the classifier."""

    def check(self, card: Card, method: FedIoT) -> None:
        autoencoders, classifier = _parts(card)
        found = sum(path in self.w for path in classifier)
        if not self.w.keys() >= set(autoencoders) or found not in (0, len(classifier)):
            raise CommunisError("w must hold all autoencoders, and a whole classifier or none")


@dataclass(frozen=True)
class FedIoT(Sharing, Method[Server, State, Down, Up]):
    """Autoencoders learn from everybody's windows without labels, a classifier on their codes from
    the windows of one client that are public."""

    cross: bool = True  # every modality is also reconstructed from the codes of the others
    alpha: float = 100.0  # weight of a window on clients with several modalities; 1: like any other
    hidden: int = 32  # units of a decoder's hidden layer
    classifier_epochs: int = 5  # passes over the public windows per round; max_steps is heeded too

    def __post_init__(self) -> None:
        super().__post_init__()
        requirements.at_least(self, hidden=1, classifier_epochs=1)
        if self.alpha <= 0:
            raise CommunisError(f"fediot needs alpha > 0, got {self.alpha}")

    @property
    def needs(self) -> Needs:
        return Needs(public_windows=True)

    def equip(self, model: Model, task: Task) -> None:
        if self.cross:
            requirements.one_size(model.feature_sizes.values(), "fediot (unless cross = false)")
        for m, size in model.feature_sizes.items():
            model.unimodal[m] = MLP((size, self.hidden, prod(model.shapes[m])))

    def sends(self, card: Card) -> Sent:
        """Only the owner of the public windows sends a classifier."""
        return Sent(self.travels(card), optional=_parts(card)[1])

    def start_server(self, fleet: FleetView) -> Server:
        return Server(w=self.initial(fleet))

    def start_client(self, client: Client) -> State:
        return self.keep(client)

    def down(self, server: Server, card: Card) -> Down:
        return Down(w=server.w.pick(card.shapes))

    def adopt(self, client: Client, state: State, down: Down) -> State:
        (state | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        autoencoders, classifier = _parts(client.card)
        sent = State()
        if client.public and client.public.owner == client.card.id:
            client.log["classifier_loss"] = self.train(
                replace(client, train=client.public.samples),
                loss=lambda output, batch: _classified(client, output, batch),
                paths=classifier,
                epochs=self.classifier_epochs,
            ).loss
            sent = State.of(client.model, classifier)
            self.adopt(client, state, down)  # statistics of windows with sensors masked are no use
        replace(self, balanced=False).train(  # classes are labels, too
            client,
            loss=lambda output, batch: _reconstructed(client.model, output, batch, self.cross),
            paths=autoencoders,
        )
        told = self.statistics(client.card)
        return self.keep(client), Up(w=self.send(client).pick([*autoencoders, *told]) | sent)

    def common(self, server: Server) -> State:
        return server.w

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        return Server(w=server.w | sound(ups.mean(lambda up: up.w, by=self.weight)))

    def weight(self, card: Card, path: str) -> float:
        return presence(card, path) * (self.alpha if len(card.modalities) > 1 else 1)


def _parts(card: Card) -> tuple[list[str], list[str]]:
    """The paths of encoders and decoders, and those of fusion and head."""
    autoencoders = [path for path in card.params if modality_of(path)]
    return autoencoders, [path for path in card.params if not modality_of(path)]


def _reconstructed(model: Model, output: Output, batch: Batch, cross: bool) -> Tensor:
    """The mean squared errors of every modality, from its own code and, if `cross`, from that of
    each other; of the windows that have both."""
    losses = []
    for m in output.features:
        for source, h in output.features.items() if cross else ((m, output.features[m]),):
            there = batch.present[m] & batch.present[source]
            x, rebuilt = batch.inputs[m][there].flatten(1), model.unimodal[m](h[there])
            losses.append(F.mse_loss(rebuilt, x) if len(x) else rebuilt.sum())
    return torch.stack(losses).sum()


def _classified(client: Client, output: Output, batch: Batch) -> Tensor:
    """The sum of the task's losses with all modalities and, if there are several, with each alone;
    of the windows that have it."""
    total = client.task.loss(output.prediction, batch.target)
    for m in output.features if len(output.features) > 1 else ():
        alone = {k: h if k == m else torch.zeros_like(h) for k, h in output.features.items()}
        present = {k: p if k == m else torch.zeros_like(p) for k, p in batch.present.items()}
        said = client.model.join(alone, present).prediction[present[m]]
        if len(said):
            total = total + client.task.loss(said, batch.target[present[m]])
    return total
