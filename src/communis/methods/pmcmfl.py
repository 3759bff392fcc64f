"""PmcmFL. Bao et al., 2023; details follow the authors' code, Noirebao/Multimodal_Federated.
https://arxiv.org/abs/2312.13508

Names: C is the library of prototypes, the mean feature h_m of each class y for every modality m;
n are the numbers of windows behind them; q are the classes whose prototypes form the mask of a
window, which replaces the features of a missing modality.
Messages: Down(w, C, n); Up(w, sums, counts). w is the federated part of the model.
Deviation: at inference, where y is unknown, the mask is the mean of C over classes.
Deviation: a prototype is the mean over all windows of the cohort that have its class and modality;
    in the code, over the windows with all modalities. A prototype that no client has sent yet masks
    nothing; in the code the mask is noise.
Deviation: only h_m is compared with prototypes, by cosine similarity. The code also compares the
    fused feature, and uses dot products.
Deviation: with block fusion a client masks only modalities that it owns, because it has no weights
    for the others. With attention the prototypes of its labels also replace modalities that it
    never owned, as in the paper. In training the labels then influence the inputs of the fusion; at
    inference they do not. See `fill`.
Deviation: the contrastive loss is a sum over the client's modalities, as in the code, which has two
    modalities. Its weight grows with their number unless `reduce` = "mean".
Beyond the paper: `library` = "own" is the control: the same losses with prototypes of the client's
    own windows. No prototypes are sent; parameters are still averaged.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

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
    Output,
    Prediction,
    UpMessage,
)
from communis.core.errors import CommunisError
from communis.core.replies import Replies
from communis.core.state import State
from communis.methods.fedavg import Averaging
from communis.methods.parts.prototypes import feature_sums, repaired_counts


@dataclass(frozen=True)
class Server:
    w: State
    C: State  # (classes, features) by modality of the fleet; zero where n is zero
    n: State  # (classes,) by modality, when the prototype was last updated; 0: no prototype yet


Private = Server  # w: the tensors that stay on the client; C and n: as last received


@dataclass(frozen=True)
class Down:
    w: State  # the paths that the client owns
    C: State  # as on the server; empty with library = "own"
    n: State


@dataclass(frozen=True)
class Up(UpMessage):
    w: State
    # Sum of h_m by class, for each modality that the client owns; empty with library = "own".
    sums: Annotated[State, "classes", "features"]
    counts: Annotated[State, "classes"]  # windows behind the sums

    def check(self, card: Card, method: PmcmFL) -> None:
        expected = sorted(card.modalities) if method.library == "fleet" else []
        if sorted(self.sums) != expected or sorted(self.counts) != expected:
            raise CommunisError(
                f"sums have the modalities {sorted(self.sums)} and counts {sorted(self.counts)}, "
                f"expected {expected} with library = {method.library!r}"
            )
        for m, n in self.counts.items():
            windows = card.samples_by_modality[m]
            integers = bool(((n >= 0) & (n == n.round())).all())
            possible = integers and float(n.sum()) <= windows
            if not possible or bool(self.sums[m][n == 0].any()):
                raise CommunisError(
                    f"sums/{m} and counts/{m} cannot be those of the client's {windows} windows "
                    f"with {m}"
                )

    def repaired(self) -> Self:
        sums = {}
        counts = {}
        for m, n in self.counts.items():
            sums[m], counts[m] = repaired_counts(self.sums[m], n)
        return replace(self, sums=State(sums), counts=State(counts))


@dataclass(frozen=True)
class PmcmFL(Averaging, Method[Server, Private, Down, Up]):
    """FedAvg with class prototypes, which replace the features of missing modalities and serve as
    anchors of the features."""

    contrast: float = 0.1  # weight of the contrastive loss between features and prototypes
    tau: float = 0.07  # temperature of the contrastive loss
    reduce: Literal["sum", "mean"] = "sum"  # sum or mean of the contrastive losses of the client's
    # modalities
    fill: Literal["fleet", "own"] = "fleet"  # missing modalities that prototypes replace; fleet:
    # all modalities of the fleet, if the fusion accepts them; own: those that the client owns
    library: Literal["fleet", "own"] = "fleet"  # source of the prototypes; fleet: all clients; own:
    # the client in its last round, nothing is sent

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.contrast < 0 or self.tau <= 0:
            raise CommunisError(
                f"pmcmfl needs contrast >= 0 and tau > 0, got {self.contrast} and {self.tau}"
            )

    def start_server(self, fleet: FleetView) -> Server:
        requirements.classes(fleet, "pmcmfl", "a prototype belongs to a class")
        size = requirements.one_size([card.sizes["features"] for card in fleet.cards], "pmcmfl")
        modalities: list[str] = []
        if self.library == "fleet":
            modalities = sorted({m for card in fleet.cards for m in card.modalities})
        C, n = empty_library(modalities, fleet.task.classes, size)
        return Server(self.initial(fleet), C, n)

    def start_client(self, client: Client) -> Private:
        size = requirements.one_size(client.model.feature_sizes.values(), "pmcmfl")
        modalities = client.card.modalities if self.library == "own" else ()
        C, n = empty_library(modalities, client.task.classes, size)
        device = client.train.target.device
        C = C.map(lambda t: t.to(device))
        n = n.map(lambda t: t.to(device))
        return Private(self.keep(client), C, n)

    def down(self, server: Server, card: Card) -> Down:
        return Down(server.w.pick(card.shapes), server.C, server.n)

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        (state.w | down.w).load_into(client.model)
        return state if self.library == "own" else Private(state.w, down.C, down.n)

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        def loss(output: Output, batch: Batch) -> Tensor:
            y = client.task.labels(batch.target)
            q = F.one_hot(y, client.task.classes)
            L = client.task.loss(self.masked(client, output, batch, state, q), batch.target)
            contrasts = contrastive_losses(output, batch, state, y, self.tau)
            factor = 1 / max(1, len(contrasts)) if self.reduce == "mean" else 1.0
            total = sum(contrasts, torch.zeros((), device=y.device))
            return L + self.contrast * factor * total

        self.train(client, loss=loss)
        sums, counts = feature_sums(client, client.train)
        if self.library == "fleet":
            return replace(state, w=self.keep(client)), Up(self.send(client), sums, counts)
        C = State({m: sums[m] / n.clamp_min(1)[:, None] for m, n in counts.items()})
        return Private(self.keep(client), C, counts), Up(self.send(client), State(), State())

    def masked(
        self, client: Client, output: Output, batch: Batch, library: Server, q: Tensor
    ) -> Tensor:
        """Returns the prediction with prototypes in place of missing modalities."""
        if self.fill == "fleet" and client.model.open_to_any:
            modalities = list(library.C)
        else:
            modalities = list(output.features)
        return masked(client, output, batch, library, q, modalities).prediction

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        if self.library == "own":
            return replace(server, w=self.merge(server.w, ups))
        C = dict(server.C)
        n = dict(server.n)
        means, counts = ups.classwise(lambda up: up.sums, lambda up: up.counts)
        for m, count in counts.items():
            C[m] = torch.where(count[:, None] > 0, means[m], C[m])
            n[m] = torch.where(count > 0, count, n[m])
        return Server(self.merge(server.w, ups), State(C), State(n))

    def predict(self, client: Client, state: Private, batch: Batch) -> Prediction:
        """Scores the prediction with masks. It also records the prediction of the same model
        without masks."""
        output = client.model(batch)
        all_classes = torch.ones_like(output.prediction)
        prediction = self.masked(client, output, batch, state, all_classes)
        return Prediction(prediction, {"unmasked": output.prediction})


def empty_library(modalities: Iterable[str], classes: int, size: int) -> tuple[State, State]:
    """Returns C and n of a library without prototypes."""
    n = {m: torch.zeros(classes) for m in modalities}
    C = {m: torch.zeros(classes, size) for m in n}
    return State(C), State(n)


def masked(
    client: Client,
    output: Output,
    batch: Batch,
    library: Server,
    q: Tensor,
    modalities: Iterable[str],
) -> Output:
    """Returns the output with prototypes in place of missing features of these modalities. The mask
    of a window is the mean prototype of the classes in its row of q (B, classes)."""
    features = dict(output.features)
    present = dict(batch.present)
    for m in modalities:
        known = q * (library.n[m] > 0).float()  # the classes of q that have a prototype
        total = known.sum(1)
        has_m = present.get(m, torch.zeros_like(total, dtype=torch.bool))
        if bool((~has_m & (total > 0)).any()):
            mask = known @ library.C[m] / total.clamp_min(1)[:, None]
            features[m] = torch.where(has_m[:, None], features.get(m, mask), mask)
            present[m] = has_m | (total > 0)
    return client.model.join(features, present)


def contrastive_losses(
    output: Output, batch: Batch, library: Server, y: Tensor, tau: float
) -> list[Tensor]:
    """Returns the contrastive loss of every modality that has prototypes. The positive of a window
    is the prototype of its class, the negatives are those of the other windows in the batch."""
    losses = []
    for m, h in output.features.items():
        rows = batch.present[m] & (library.n[m][y] > 0)
        if bool(rows.any()):
            cosine = F.normalize(h[rows]) @ F.normalize(library.C[m][y[rows]]).T
            losses.append(-F.log_softmax(cosine / tau, 1).diagonal().mean())
    return losses
