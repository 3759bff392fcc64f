"""FedMD. Li and Wang, NeurIPS workshop 2019, Algorithm 1.
https://arxiv.org/abs/1910.03581

Clients train towards a consensus of their predictions on public windows. Steps are named as in the
paper: revisit (train on private windows), communicate, aggregate, distribute, digest.
Messages: Down(consensus); Up(logits). Both are predictions on public windows; no parameters are
    sent.
Deviation: a round begins with revisit and ends with digest, so clients are scored after digest.
Deviation: the initial transfer learning consists of `pretrain` rounds in which clients train on the
    labelled public windows. These rounds include the exchange.
Deviation: the paper does not state which loss digest minimises. The default is that of the authors'
    code.
Deviation: the public windows are the training windows of one client, which takes part like the
    others. All clients are assumed to have them: they are not sent and not counted as bytes.
Deviation: a client's predictions for windows that none of its sensors recorded count like the
    others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from communis.core import requirements
from communis.core.contract import AfterExchange, Card, Client, FleetView, Needs, Samples, UpMessage
from communis.core.diagnostics import Diagnostic
from communis.core.errors import CommunisError
from communis.core.replies import Replies, uniform
from communis.core.samples import TensorSamples
from communis.core.state import State
from communis.methods.parts.training import Recipe, note_forward

DIGEST_LOSS = Diagnostic("digest_loss", "of `digest`", "mean loss of digesting the consensus")


@dataclass(frozen=True)
class Server:
    consensus: Tensor  # (public_batch, outputs): mean logits on the last round's public windows


@dataclass(frozen=True)
class Down:
    consensus: Tensor  # (public_batch, outputs) after the exchange; no rows before training


@dataclass(frozen=True)
class Up(UpMessage):
    logits: Tensor  # (public_batch, outputs)

    def check(self, card: Card, method: FedMD) -> None:
        shape = tuple(self.logits.shape)
        expected = (method.public_batch, card.sizes["outputs"])
        if shape != expected or self.logits.dtype is not torch.float32:
            raise CommunisError(
                f"logits are {self.logits.dtype} {shape}, expected torch.float32 {expected}"
            )


@dataclass(frozen=True)
class FedMD(Recipe, AfterExchange[Server, State, Down, Up]):
    """Clients share their predictions on public windows and train towards the mean of these. Any
    mix of models is possible."""

    public_batch: int = 64  # public windows per round; if there are fewer, they are repeated
    digest: Literal["mae", "mse", "kl"] = "mae"  # distance to the consensus; mae, mse: absolute or
    # squared error of logits; kl: divergence of class probabilities
    temperature: float = 1.0  # temperature of class probabilities with digest = "kl"
    digest_epochs: int = 1  # passes of digest over the round's public windows; max_steps does not
    # limit them
    pretrain: int = 0  # rounds at the start in which clients train on all public windows instead of
    # their own

    def __post_init__(self) -> None:
        super().__post_init__()
        requirements.at_least(self, public_batch=1, digest_epochs=0, pretrain=0)
        if self.temperature <= 0:
            raise CommunisError(f"fedmd needs temperature > 0, got {self.temperature}")

    @property
    def needs(self) -> Needs:
        return Needs(public_windows=True, models="any")

    def start_server(self, fleet: FleetView) -> Server:
        if self.digest == "kl":
            requirements.classes(
                fleet, "fedmd with digest = 'kl'", "it compares class probabilities"
            )
        return Server(torch.zeros(self.public_batch, fleet.task.outputs))

    def start_client(self, client: Client) -> State:
        return State.all(client.model)

    def down(self, server: Server, card: Card) -> Down:
        return Down(server.consensus[:0])

    def adopt(self, client: Client, state: State, down: Down) -> State:
        state.load_into(client.model)
        return state

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        windows = client.train if client.round > self.pretrain else _public(client)
        self.train(replace(client, train=windows))  # revisit
        state = State.all(client.model)
        return state, Up(self._logits(client))  # communicate

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        return Server(ups.mean(lambda up: up.logits, by=uniform))

    def down_after(self, server: Server, card: Card) -> Down:
        return Down(server.consensus)  # distribute

    def common(self, server: Server) -> dict[str, Tensor]:
        return {"consensus": server.consensus}

    def after_exchange(self, client: Client, state: State, down: Down) -> State:
        if not self.digest_epochs:
            return state
        trained = replace(self, max_steps=0, balanced=False).train(
            replace(client, train=self._public_batch(client, down.consensus)),
            loss=lambda output, batch: self.distance(output.prediction, batch.target),
            epochs=self.digest_epochs,
            memory="digest",  # revisit and digest have separate optimiser memories
        )
        client.log[DIGEST_LOSS.name] = trained.loss
        return State.all(client.model)

    def distance(self, logits: Tensor, consensus: Tensor) -> Tensor:
        """Returns the loss that digest minimises."""
        if self.digest == "mae":
            return F.l1_loss(logits, consensus)
        if self.digest == "mse":
            return F.mse_loss(logits, consensus)
        p = F.log_softmax(consensus / self.temperature, 1)
        q = F.log_softmax(logits / self.temperature, 1)
        return self.temperature**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)

    def _public_batch(self, client: Client, target: Tensor | None = None) -> TensorSamples:
        """Returns this round's public windows, which are the same for all clients. target: replaces
        their labels."""
        public = _public(client)
        order = client.streams.generator("public", client.round).permutation(len(public))
        batch = public.batch(torch.from_numpy(np.resize(order, self.public_batch)))
        inputs = {m: x.movedim(1, -1) for m, x in batch.inputs.items()}
        return TensorSamples(inputs, batch.present, batch.target if target is None else target)

    @torch.no_grad()
    def _logits(self, client: Client) -> Tensor:
        """Returns the client's logits on this round's public windows."""
        windows = self._public_batch(client)
        model = client.model.eval()
        note_forward(client, windows)
        parts = torch.split(torch.arange(len(windows)), 512)
        return torch.cat([model(windows.batch(rows)).prediction for rows in parts])


def _public(client: Client) -> Samples:
    if client.public is None:
        raise CommunisError("fedmd needs public windows: see [fleet] public")
    return client.public.samples
