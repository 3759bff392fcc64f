"""PmcmFL. Bao et al., 2023; details after the authors' code, Noirebao/Multimodal_Federated.
https://arxiv.org/abs/2312.13508

C is the library of prototypes: the mean feature h_m of each class y, n the windows behind it.
Deviation: at inference, where y is unknown, the mask is the mean of C over classes.
Deviation: a prototype is the mean over all windows of the cohort that have its class and modality;
    one that nobody has sent yet masks nothing (in the code: windows with every modality; noise).
Deviation: only h_m meets prototypes, by cosine (in the code: also the fused one, by raw products).
Deviation: with block fusion a client masks only what it owns: it has no weights for the others.
    With attention the prototypes of its labels stand in for sensors that it never owned, too, as in
    the paper, and training sees labels among its inputs that predictions lack: `fill`.
Deviation: the contrast is a sum over the client's sensors, as in the code, which has two; its
    weight grows with their number unless `reduce` = "mean".
Beyond the paper: `library` = "own" is the control: the same losses with prototypes of the client's
    own windows; none are sent, parameters are averaged all the same.
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
from communis.methods.parts.prototypes import counted, feature_sums


@dataclass(frozen=True)
class Server:
    w: State
    C: State  # by modality of the fleet, (classes, features); zero where n is
    n: State  # by modality, (classes,) of the last round that had any; 0: no prototype yet


Down = Server  # w: the paths that the client owns
Private = Server  # w: what never leaves the client; C and n as last received


@dataclass(frozen=True)
class Up(UpMessage):
    w: State
    sums: Annotated[State, "classes", "features"]  # of h_m, for each modality that the client owns;
    # nothing if prototypes stay
    counts: Annotated[State, "classes"]

    def check(self, card: Card, method: PmcmFL) -> None:
        told = sorted(card.modalities) if method.library == "fleet" else []
        if sorted(self.sums) != told or sorted(self.counts) != told:
            raise CommunisError(
                f"sums and counts are of {sorted(self.sums)} and {sorted(self.counts)}, with "
                f"library = {method.library!r} expected {told}"
            )
        for m, n in self.counts.items():
            windows = card.samples_by_modality[m]
            possible = bool(((n >= 0) & (n == n.round())).all()) and float(n.sum()) <= windows
            if not possible or bool(self.sums[m][n == 0].any()):
                raise CommunisError(f"sums/{m} and counts/{m} are not those of {windows} windows")

    def repaired(self) -> Self:
        pairs = {m: counted(self.sums[m], n) for m, n in self.counts.items()}
        sums = State({m: own for m, (own, _) in pairs.items()})
        counts = State({m: n for m, (_, n) in pairs.items()})
        return replace(self, sums=sums, counts=counts)


@dataclass(frozen=True)
class PmcmFL(Averaging, Method[Server, Private, Down, Up]):
    """FedAvg with class prototypes in place of missing modalities and as anchors of features."""

    contrast: float = 0.1  # weight of the contrast between features and prototypes
    tau: float = 0.07  # temperature of the contrast
    reduce: Literal["sum", "mean"] = "sum"  # of the contrast, over the sensors that a client owns
    fill: Literal["fleet", "own"] = "fleet"  # what prototypes stand in for: any sensor of the
    # fleet; or gaps of those that the client owns
    library: Literal["fleet", "own"] = "fleet"  # whose prototypes; own: the client's of its last
    # round, and none are sent

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.contrast < 0 or self.tau <= 0:
            raise CommunisError(f"contrast >= 0 and tau > 0, got {self.contrast} and {self.tau}")

    def start_server(self, fleet: FleetView) -> Server:
        requirements.classes(fleet, "pmcmfl", "a prototype belongs to a class")
        size = requirements.one_size([card.sizes["features"] for card in fleet.cards], "pmcmfl")
        known = sorted({m for card in fleet.cards for m in card.modalities})
        modalities = known if self.library == "fleet" else []
        return Server(self.initial(fleet), *nothing(modalities, fleet.task.classes, size))

    def start_client(self, client: Client) -> Private:
        size = requirements.one_size(client.model.feature_sizes.values(), "pmcmfl")
        modalities = client.card.modalities if self.library == "own" else ()
        C, n = nothing(modalities, client.task.classes, size)
        device = client.train.target.device
        return Private(
            self.keep(client), C.map(lambda t: t.to(device)), n.map(lambda t: t.to(device))
        )

    def down(self, server: Server, card: Card) -> Down:
        return replace(server, w=server.w.pick(card.shapes))

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        (state.w | down.w).load_into(client.model)
        return state if self.library == "own" else replace(down, w=state.w)

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        def loss(output: Output, batch: Batch) -> Tensor:
            y = client.task.labels(batch.target)
            q = F.one_hot(y, client.task.classes)
            L = client.task.loss(self.masked(client, output, batch, state, q), batch.target)
            contrasts = anchored(output, batch, state, y, self.tau)
            share = 1 / max(1, len(contrasts)) if self.reduce == "mean" else 1.0
            return L + self.contrast * share * sum(contrasts, torch.zeros((), device=y.device))

        self.train(client, loss=loss)
        sums, counts = feature_sums(client, client.train)
        if self.library == "fleet":
            return replace(state, w=self.keep(client)), Up(self.send(client), sums, counts)
        C = State({m: sums[m] / n.clamp_min(1)[:, None] for m, n in counts.items()})
        return Private(self.keep(client), C, counts), Up(self.send(client), State(), State())

    def masked(
        self, client: Client, output: Output, batch: Batch, library: Server, q: Tensor
    ) -> Tensor:
        """The prediction with prototypes for what is missing."""
        everything = self.fill == "fleet" and client.model.open_to_any
        filled = list(library.C) if everything else list(output.features)
        return masked(client, output, batch, library, q, filled).prediction

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        if self.library == "own":
            return replace(server, w=self.merge(server.w, ups))
        C, n = dict(server.C), dict(server.n)
        means, counts = ups.classwise(lambda up: up.sums, lambda up: up.counts)
        for m, heard in counts.items():
            C[m] = torch.where(heard[:, None] > 0, means[m], C[m])
            n[m] = torch.where(heard > 0, heard, n[m])
        return Server(self.merge(server.w, ups), State(C), State(n))

    def predict(self, client: Client, state: Private, batch: Batch) -> Prediction:
        """The prediction with masks, and that of the same model without."""
        output = client.model(batch)
        whole = self.masked(client, output, batch, state, torch.ones_like(output.prediction))
        return Prediction(whole, {"unmasked": output.prediction})


def nothing(modalities: Iterable[str], classes: int, size: int) -> tuple[State, State]:
    """A library without prototypes: C and n."""
    n = {m: torch.zeros(classes) for m in modalities}
    return State({m: torch.zeros(classes, size) for m in n}), State(n)


def masked(
    client: Client,
    output: Output,
    batch: Batch,
    library: Server,
    q: Tensor,
    modalities: Iterable[str],
) -> Output:
    """The output with prototypes for what is missing of these modalities: the mean of the classes
    in q (B, classes)."""
    features, present = dict(output.features), dict(batch.present)
    for m in modalities:
        known = q * (library.n[m] > 0).float()
        total = known.sum(1)
        there = present.get(m, torch.zeros_like(total, dtype=torch.bool))
        if bool((~there & (total > 0)).any()):
            mask = known @ library.C[m] / total.clamp_min(1)[:, None]
            features[m] = torch.where(there[:, None], features.get(m, mask), mask)
            present[m] = there | (total > 0)
    return client.model.join(features, present)


def anchored(output: Output, batch: Batch, library: Server, y: Tensor, tau: float) -> list[Tensor]:
    """The contrast of every sensor that there are prototypes for: of all in a batch, a window's
    features shall be nearest its own."""
    found = []
    for m, h in output.features.items():
        rows = batch.present[m] & (library.n[m][y] > 0)
        if bool(rows.any()):
            cosine = F.normalize(h[rows]) @ F.normalize(library.C[m][y[rows]]).T
            found.append(-F.log_softmax(cosine / tau, 1).diagonal().mean())
    return found
