"""FedAPA. Adaptive prototype aggregation for Wi-Fi crowd counting, Section IV
(no public address known).

The formulas are missing in the available text of the paper. They are reconstructed from its prose,
from the methods that it builds on, and from its numbers of parameters and bytes. p are the
prototypes of a client's classes, n the numbers of windows behind them, alpha the aggregation
weights, tau the temperature, lam the weight of both contrastive losses.
Messages: Down(p, has, n); Up(p, has, n). No parameters are sent.
Deviation: prototypes are means of embeddings of length 1, as the appendix assumes. The head gets
    the embeddings without normalisation.
Deviation: a client is one of its own peers; otherwise tau -> 0 would not give its own prototype.
Deviation: L_p is the mean over clients of a contrastive loss among the prototypes of each client.
    The positive is in the denominator, so the loss is bounded, as the analysis assumes.
Deviation: nothing is sent before the first round, in which lam is 0. The appendix mentions random
    prototypes.
Deviation: a class that no client has is in no denominator.
Beyond the paper: the server keeps the last prototypes of clients that do not take part in a round,
    with their age. A client that the server has not heard from yet trains alone for a round,
    whatever lam_min is.
Beyond the paper: a client sends its counts in the first round, when they change, and in every tenth
    round, because messages may be lost. `sparse` and `min_count` are not in the paper.
Beyond the paper: `exchange = false` is the control: the same loss, with the client's own prototypes
    as the personalised prototypes and as those of all clients.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from communis.core import requirements
from communis.core.contract import Batch, Card, Client, FleetView, Method, Needs, Output, UpMessage
from communis.core.replies import Replies
from communis.core.state import State
from communis.methods.parts import prototypes
from communis.methods.parts.prototypes import Library
from communis.methods.parts.training import Loss, Recipe

COUNTS_EVERY = 10  # rounds between two messages with unchanged counts, as messages may be lost


@dataclass(frozen=True)
class Private:
    model: State
    p: Tensor  # (classes, d): the prototypes last sent
    n: Tensor  # (classes,): the windows behind them
    received: Tensor  # targets from the last `Down`; empty after training has used them


@dataclass(frozen=True)
class Up(UpMessage):
    p: Tensor  # (classes, d), zero for classes without windows; sparse: the existing rows only
    has: Tensor  # sparse: one bit per class; else empty
    n: Tensor  # (classes,); empty if the server knows them

    def check(self, card: Card, method: FedAPA) -> None:
        prototypes.check(self.p, self.has, self.n, card, method.sparse)

    def repaired(self) -> Self:
        p, has, n = prototypes.repaired(self.p, self.has, self.n)
        return replace(self, p=p, has=has, n=n)


@dataclass(frozen=True)
class Down:
    p: Tensor  # (1 + others, classes, d): the personalised prototypes and the padded prototypes of
    # all other clients; sparse: the existing rows only, without padding
    has: Tensor  # sparse: one bit per class of each set; else empty
    n: Tensor  # sparse: (others, classes); else empty


@dataclass(frozen=True)
class FedAPA(Recipe, Method[Library, Private, Down, Up]):
    """Clients share class prototypes, never parameters, and give more weight to prototypes that are
    similar to their own. Any mix of models with one embedding size is possible."""

    tau: float = 0.5  # temperature of the aggregation weights and of the contrastive losses
    lam_min: float = 0.0  # weight of the contrastive losses in the first round
    lam_max: float = 1.0  # weight of the contrastive losses after the warm-up
    warmup: int = 50  # rounds in which the weight grows from lam_min to lam_max, along a cosine
    weights: Literal["adaptive", "average"] = "adaptive"  # weights of the clients in personalised
    # prototypes; adaptive: by similarity; average: equal
    clients: bool = True  # also use the contrastive loss L_p, with the prototypes of all clients
    include_self: bool = True  # a client's own prototypes count in its personalised prototypes
    min_count: int = 1  # fewest windows of a class whose prototype is sent; the prototype of a
    # single window is its embedding
    stale: int = 0  # rounds for which prototypes of absent clients are used; 0: without limit
    sparse: bool = False  # send only prototypes of existing classes; the receiver pads the others
    exchange: bool = True  # false: nothing is sent; a client uses its own prototypes of its last
    # round

    def __post_init__(self) -> None:
        super().__post_init__()
        requirements.at_least(self, tau=1e-6, lam_min=0, lam_max=self.lam_min, min_count=1)
        requirements.at_least(self, warmup=0, stale=0)

    @property
    def needs(self) -> Needs:
        return Needs(exchange=self.exchange, models="one_embedding")

    def start_server(self, fleet: FleetView) -> Library:
        requirements.classes(fleet, "fedapa", "a prototype belongs to a class")
        return Library.empty(fleet.task.classes, requirements.one_embedding(fleet, "fedapa"))

    def start_client(self, client: Client) -> Private:
        classes = client.card.sizes["classes"]
        d = client.card.sizes["embedding"]
        p = torch.zeros(classes, d, device=client.train.target.device)
        return Private(State.all(client.model), p, n=p[:, 0], received=p[:0])

    def down(self, server: Library, card: Card) -> Down:
        """Sends the personalised prototypes and, with `clients`, the prototypes of all others.
        Nothing is sent to a client whose prototypes are unknown."""
        library, i = server.fresh(card.id, self.stale)
        if i < 0:
            p, has = prototypes.pack(library.p[:0], self.sparse)
            return Down(p, has, library.n[:0])
        alpha = self.alpha(library, i)
        personal = prototypes.personal(library.p, alpha, library.means)[None]  # Equations 7 and 8
        others = (library.who != card.id) & self.clients
        rest = library.p if self.sparse or not self.clients else library.padded  # Equation 8
        n = library.n[others] if self.sparse else library.n[:0]
        p, has = prototypes.pack(torch.cat([personal, rest[others]]), self.sparse)
        return Down(p, has, n)

    def alpha(self, library: Library, i: int) -> Tensor:
        """Returns the weights (K, classes) of all clients for the i-th client of the library."""
        if self.weights == "average":
            return prototypes.equal(library.n)
        # Equations 5 and 6
        return prototypes.weights(library.p, library.n, i, self.tau, self.include_self)

    def adopt(self, client: Client, state: Private, down: Down) -> Private:
        state.model.load_into(client.model)
        return replace(state, received=self.targets(client, state, down))

    def targets(self, client: Client, state: Private, down: Down) -> Tensor:
        """Returns unit vectors (1 + K, classes, d): the personalised prototypes and, with
        `clients`, the padded prototypes of all clients including this one. The result is empty if
        no prototypes were sent."""
        sets = prototypes.unpack(down.p, down.has, client.task.classes)
        if len(sets) and self.clients:
            of_clients = prototypes.of_all_clients(sets, state.p, state.n, down.n)
            sets = torch.cat([sets[:1], of_clients])
        return F.normalize(sets, dim=-1)

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        self.train(client, loss=self.objective(client, state.received))
        sums, counts = prototypes.class_sums(client, client.train, unit=True)
        n = torch.where(counts >= self.min_count, counts, 0.0)
        p = sums / n.clamp_min(1)[:, None] * (n > 0)[:, None]  # Equation 4
        # The server knows this client if it sent targets.
        server_has_n = len(state.received) > 0 and torch.equal(n, state.n.cpu())
        if server_has_n and client.round % COUNTS_EVERY:
            sent_n = n[:0]
        else:
            sent_n = n
        sent_p, has = prototypes.pack(p, self.sparse)
        state = Private(State.all(client.model), p, n, received=state.received[:0])
        return state, Up(sent_p, has, sent_n)

    def objective(self, client: Client, targets: Tensor) -> Loss | None:
        """Returns the loss of this round; None: the task loss."""
        t = client.round - 1
        lam = prototypes.warmup_weight(t, self.lam_min, self.lam_max, self.warmup)  # Equation 11

        def loss(output: Output, batch: Batch) -> Tensor:  # Equation 12
            y = client.task.labels(batch.target)
            L_CE = client.task.loss(output.prediction, batch.target)
            L = prototypes.contrast(output.embedding, y, targets, self.tau)
            L_g = L[0]  # Equation 9
            if not self.clients:
                return L_CE + lam * L_g
            L_p = L[1:].mean()  # Equation 10
            return L_CE + lam * (L_g + L_p)

        return loss if lam and len(targets) else None

    def aggregate(self, server: Library, ups: Replies[Up]) -> Library:
        return server.updated([(card.id, up.p, up.has, up.n) for card, up in ups.each()])

    def common(self, server: Library) -> dict[str, Tensor]:
        return server.by_class

    def notes(self, server: Library, node: int) -> dict[str, float]:
        weights = prototypes.weight_notes(server, self.alpha, self.stale, node)
        return prototypes.similarity_notes(server) | weights
