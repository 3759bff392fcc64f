"""UniFL: the modality-wise stage of Harmony alone. Ouyang et al., MobiSys 2023.
https://doi.org/10.1145/3581791.3596844

CoMFed's baseline "Harmony-UniFL": one FedAvg per modality, of a whole unimodal network.
Deviation: a network is the model's encoder with a fusion and a head for that modality alone; the
    model's own fusion and head, which serve all modalities, are not used and stay as they began.
Deviation: all modalities of a client train in every round, each on the windows that have it.
Deviation: means are weighted by these windows; `uniform` is the public code's.
Deviation: the paper does not say what becomes of BatchNorm statistics: `norms`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from communis.core import (
    Batch,
    Card,
    Client,
    CommunisError,
    FleetView,
    Method,
    Model,
    Task,
    modality_of,
)
from communis.local import Recipe, note_forward
from communis.methods.harmony import modality_wise, unimodal_loss, unimodal_mean
from communis.replies import Replies, presence, uniform
from communis.state import State

PART = 512  # windows at once when statistics are estimated anew


@dataclass(frozen=True)
class Networks:
    """What the server has, and what travels either way."""

    w: State  # the unimodal networks
    norms: Mapping[str, Tensor]  # their BatchNorm statistics, if shared; none before the first mean


@dataclass(frozen=True)
class UniFL(Recipe, Method[Networks, State, Networks, Networks]):
    """Every modality is learnt by itself, federated; who has several averages their logits."""

    norms: Literal["private", "shared", "recalibrated"] = "private"  # BatchNorm's statistics
    uniform: bool = False  # weigh all clients alike instead of by the windows that have a modality

    def equip(self, model: Model, task: Task) -> None:
        for m in model.feature_sizes:
            model.unimodal[m] = model.branch(m)

    def sends(self, card: Card) -> list[str]:
        return modality_wise(card.params)

    def start_server(self, fleet: FleetView) -> Networks:
        return Networks(w=fleet.params.pick(modality_wise(fleet.params)), norms={})

    def start_client(self, client: Client) -> State:
        return self._kept(client)

    def down(self, server: Networks, card: Card) -> Networks:
        owned = {k: t for k, t in server.norms.items() if modality_of(k) in card.modalities}
        return Networks(server.w.pick(card.params), owned)

    def adopt(self, client: Client, state: State, down: Networks) -> State:
        (state | down.norms | down.w).load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Networks) -> tuple[State, Networks]:
        wise = modality_wise(client.card.params)
        self.train(client, loss=lambda out, batch: unimodal_loss(client, out, batch), paths=wise)
        if self.norms == "recalibrated":
            note_forward(client, client.train)  # a device makes itself ready in every round
        kept = self._kept(client)
        sent = statistics(kept, client.card) if self.norms == "shared" else ()
        return kept, Networks(State.of(client.model, wise), kept.pick(sent))

    def vet(self, card: Card, up: Networks) -> None:
        known = statistics(up.norms, card) if self.norms == "shared" else []
        for path, tensor in up.norms.items():
            shape = card.params[_weight(path)] if path in known else None
            if tuple(tensor.shape) != shape or tensor.dtype is not torch.float32:
                raise CommunisError(f"norms/{path} is no BatchNorm statistic that a client sends")
            if path.endswith("var") and float(tensor.min()) < 0:
                raise CommunisError(f"norms/{path} is a negative variance")

    def aggregate(self, server: Networks, ups: Replies[Networks]) -> Networks:
        by = uniform if self.uniform else presence
        norms = ups.mean(lambda up: State(up.norms), by=by)
        return Networks(server.w | ups.mean(lambda up: up.w, by=by), {**server.norms, **norms})

    def prepare(self, client: Client, state: State) -> State:
        if self.norms == "recalibrated":
            recalibrate(client)
        return state

    def predict(self, client: Client, state: State, batch: Batch) -> Tensor:
        return unimodal_mean(client, client.model(batch), batch)

    def _kept(self, client: Client) -> State:
        """All that is not sent, so that the model can be filled again."""
        unused = [path for path in client.card.params if not modality_of(path)]
        return State.of(client.model, unused) | State.buffers(client.model)


def statistics(buffers: Iterable[str], card: Card) -> list[str]:
    """Those buffers that are means and variances of a client's unimodal networks; not counters."""
    return [path for path in modality_wise(buffers) if _weight(path) in card.params]


def _weight(path: str) -> str:
    """Where the scale belongs that goes with a statistic, and is of its shape; empty if none."""
    module, _, name = path.rpartition(".")
    return f"{module}.weight" if name in ("running_mean", "running_var") else ""


def _norms(model: Model) -> list[_BatchNorm]:
    named = model.named_modules()
    return [norm for path, norm in named if modality_of(path) and isinstance(norm, _BatchNorm)]


@torch.no_grad()
def recalibrate(client: Client) -> None:
    """Statistics become those of the client's training windows, with weights as they are: one
    pass, in which nothing else changes."""
    model, windows = client.model.eval(), len(client.train)
    norms = {norm: norm.momentum for norm in _norms(model)}
    parts = -(-windows // PART) if norms else 0
    for norm in norms:
        norm.reset_running_stats()
        norm.train().momentum = None  # all parts count alike
    for first in range(parts):  # each has windows from all over, so that they are alike
        batch = client.train.batch(torch.arange(first, windows, parts))
        unimodal_loss(client, model(batch), batch)  # for the pass alone
    for norm, pace in norms.items():
        norm.eval().momentum = pace
