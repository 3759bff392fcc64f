"""FedMD. Li and Wang, NeurIPS workshop 2019, Algorithm 1.
https://arxiv.org/abs/1910.03581

Clients agree on what they think of public windows. Steps are named as in the paper: revisit (train
on private windows), communicate, aggregate, distribute, digest.
Deviation: a round begins with revisit and ends with digest, so clients are scored after digesting.
Deviation: transfer learning at first is `pretrain` rounds in which clients train on the labelled
    public windows; these have an exchange, too.
Deviation: the paper leaves open what digest minimises. The default is that of the authors' code.
Deviation: the public windows are the training windows of one client, which takes part like others.
    Everybody is taken to have them: they are on no wire and not billed.
Deviation: what a client says of a window that none of its sensors saw counts like the rest.
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
from communis.core.errors import CommunisError
from communis.core.replies import Replies, uniform
from communis.core.samples import TensorSamples
from communis.core.state import State
from communis.methods.parts.training import Recipe, note_forward


@dataclass(frozen=True)
class Server:
    consensus: Tensor  # (public_batch, outputs): on the last round's public windows


@dataclass(frozen=True)
class Down:
    consensus: Tensor  # before training no rows


@dataclass(frozen=True)
class Up(UpMessage):
    logits: Tensor  # (public_batch, outputs)

    def check(self, card: Card, method: FedMD) -> None:
        shape, expected = tuple(self.logits.shape), (method.public_batch, card.sizes["outputs"])
        if shape != expected or self.logits.dtype is not torch.float32:
            found = f"{self.logits.dtype} {shape}"
            raise CommunisError(f"logits are {found}, expected torch.float32 {expected}")


@dataclass(frozen=True)
class FedMD(Recipe, AfterExchange[Server, State, Down, Up]):
    """Clients share what they predict of public windows and learn the mean of it: any mix of
    models."""

    public_batch: int = 64  # public windows per round; if there are fewer, they come round again
    digest: Literal["mae", "mse", "kl"] = "mae"  # distance to the consensus, of logits or classes
    temperature: float = 1.0  # with digest = "kl"
    digest_epochs: int = 1  # passes over the round's public windows, whatever max_steps is
    pretrain: int = 0  # rounds at the start in which clients train on all public windows instead

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
        own = client.train if client.round > self.pretrain else _public(client)
        self.train(replace(client, train=own))  # revisit
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
        pupil = replace(client, train=self._drawn(client, down.consensus))
        learnt = replace(self, max_steps=0, balanced=False).train(
            pupil,
            loss=lambda output, batch: self.distance(output.prediction, batch.target),
            epochs=self.digest_epochs,
            memory="digest",  # private windows and digesting have an optimiser each
        )
        client.log["digest_loss"] = learnt.loss
        return State.all(client.model)

    def distance(self, said: Tensor, consensus: Tensor) -> Tensor:
        """What digesting minimises."""
        if self.digest != "kl":
            return (F.l1_loss if self.digest == "mae" else F.mse_loss)(said, consensus)
        p, q = (F.log_softmax(logits / self.temperature, 1) for logits in (consensus, said))
        return self.temperature**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)

    def _drawn(self, client: Client, target: Tensor | None = None) -> TensorSamples:
        """This round's public windows, the same for everybody, with another target if given."""
        public = _public(client)
        order = client.streams.generator("public", client.round).permutation(len(public))
        batch = public.batch(torch.from_numpy(np.resize(order, self.public_batch)))
        inputs = {m: x.movedim(1, -1) for m, x in batch.inputs.items()}
        return TensorSamples(inputs, batch.present, batch.target if target is None else target)

    @torch.no_grad()
    def _logits(self, client: Client) -> Tensor:
        drawn, model = self._drawn(client), client.model.eval()
        note_forward(client, drawn)
        parts = torch.split(torch.arange(len(drawn)), 512)
        return torch.cat([model(drawn.batch(part)).prediction for part in parts])


def _public(client: Client) -> Samples:
    if client.public is None:
        raise CommunisError("fedmd needs public windows: see [fleet] public")
    return client.public.samples
