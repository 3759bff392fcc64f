"""FedIoT. Zhao, Barnaghi and Haddadi, Multimodal federated learning on IoT data, IoTDI 2022.
https://arxiv.org/abs/2109.04833

Details follow the authors' code, yuchenzhao/iotdi22-mmfl: the split autoencoder reconstructs every
modality from the code of each modality, and clients with several modalities have alpha times the
weight in the mean.
Messages: Down(w); Up(w). Down has the federated part of the model, Up the autoencoders and, from
    the owner of the public windows, the classifier.
Deviation: the encoders are those of the model, and the decoders are dense with one narrow hidden
    layer; in the code both are an LSTM layer. One step trains on all codes; in the code there is
    one step per code.
Deviation: the classifier consists of the model's fusion and head. It is trained with all modalities
    together and with each modality alone, so that it works with any of them. In the code it is one
    linear layer on the code of a single modality.
Deviation: the owner of the public windows trains the classifier on the encoders that it received,
    and sends it. In the paper the server trains it on the new encoders. On a graph only neighbours
    of the owner receive the classifier.
Deviation: clients are weighted by their windows that have the modality. In the code all clients
    have the same number of windows.
Deviation: `buffers` also applies to the BatchNorm statistics of the fusion: a client's windows pass
    through the common classifier while the autoencoders train.
Deviation: the deep canonically correlated autoencoder (DCCAE), the second autoencoder of the paper,
    is not offered.
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
from communis.core.diagnostics import Diagnostic
from communis.core.errors import CommunisError
from communis.core.replies import Replies, presence
from communis.core.state import State
from communis.methods.fedavg import Down, Server
from communis.methods.parts.sharing import Sharing, nonnegative_variances
from communis.models.network import MLP

CLASSIFIER_LOSS = Diagnostic("classifier_loss", "of the task", "mean loss of the classifier")


@dataclass(frozen=True)
class Up(UpMessage):
    w: State  # all autoencoders; from the owner of the public windows also the classifier

    def check(self, card: Card, method: FedIoT) -> None:
        autoencoders, classifier = _parts(card)
        missing = [path for path in autoencoders if path not in self.w]
        in_classifier = sum(path in self.w for path in classifier)
        if missing or in_classifier not in (0, len(classifier)):
            raise CommunisError("w must hold all autoencoders, and a complete classifier or none")


@dataclass(frozen=True)
class FedIoT(Sharing, Method[Server, State, Down, Up]):
    """Autoencoders train on the windows of all clients without labels; a classifier on their codes
    trains on the public windows of one client."""

    cross: bool = True  # every modality is also reconstructed from the codes of the others
    alpha: float = 100.0  # factor on the weight of clients with several modalities in the mean
    hidden: int = 32  # units of a decoder's hidden layer
    classifier_epochs: int = 5  # passes of the classifier over the public windows per round;
    # max_steps limits its steps too

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
        """Makes the classifier optional, as only the owner of the public windows sends it."""
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
        trained_classifier = State()
        if client.public and client.public.owner == client.card.id:
            trained = self.train(
                replace(client, train=client.public.samples),
                loss=lambda output, batch: _classification_loss(client, output, batch),
                paths=classifier,
                epochs=self.classifier_epochs,
            )
            client.log[CLASSIFIER_LOSS.name] = trained.loss
            trained_classifier = State.of(client.model, classifier)
            # Discards BatchNorm statistics of passes in which sensors were masked.
            self.adopt(client, state, down)
        # `balanced` would use labels, which the autoencoders must not see.
        replace(self, balanced=False).train(
            client,
            loss=lambda output, batch: _reconstruction_loss(
                client.model, output, batch, self.cross
            ),
            paths=autoencoders,
        )
        w = self.send(client).pick([*autoencoders, *self.statistics(client.card)])
        return self.keep(client), Up(w=w | trained_classifier)

    def common(self, server: Server) -> State:
        return server.w

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        mean = ups.mean(lambda up: up.w, by=self.weight)
        return Server(w=server.w | nonnegative_variances(mean))

    def weight(self, card: Card, path: str) -> float:
        return presence(card, path) * (self.alpha if len(card.modalities) > 1 else 1)


def _parts(card: Card) -> tuple[list[str], list[str]]:
    """Returns the paths of encoders and decoders, and the paths of fusion and head."""
    autoencoders = [path for path in card.params if modality_of(path)]
    classifier = [path for path in card.params if not modality_of(path)]
    return autoencoders, classifier


def _reconstruction_loss(model: Model, output: Output, batch: Batch, cross: bool) -> Tensor:
    """Returns the sum of the mean squared errors of every modality, reconstructed from its own code
    and, with `cross`, from the code of every other modality. Each error is the mean over the
    windows that have both modalities."""
    losses = []
    for m in output.features:
        sources = output.features if cross else {m: output.features[m]}
        for source, h in sources.items():
            rows = batch.present[m] & batch.present[source]
            x = batch.inputs[m][rows].flatten(1)
            reconstruction = model.unimodal[m](h[rows])
            # Without windows, the empty sum gives the decoder a gradient of zero.
            losses.append(F.mse_loss(reconstruction, x) if len(x) else reconstruction.sum())
    return torch.stack(losses).sum()


def _classification_loss(client: Client, output: Output, batch: Batch) -> Tensor:
    """Returns the sum of the task losses with all modalities and, if there are several, with each
    modality alone, over the windows that have it."""
    total = client.task.loss(output.prediction, batch.target)
    if len(output.features) == 1:
        return total
    for m in output.features:
        alone = {k: h if k == m else torch.zeros_like(h) for k, h in output.features.items()}
        present = {k: p if k == m else torch.zeros_like(p) for k, p in batch.present.items()}
        prediction = client.model.join(alone, present).prediction[present[m]]
        if len(prediction):
            total = total + client.task.loss(prediction, batch.target[present[m]])
    return total
