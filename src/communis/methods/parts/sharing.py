"""What of a model travels, and what becomes of its BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from communis.core.contract import Batch, Card, Client, FleetView, Sent
from communis.core.state import State
from communis.methods.parts.training import Recipe, note_forward

PART = 512  # windows at once when statistics are estimated anew


class Owner(Protocol):
    """A client's card, or the fleet."""

    @property
    def params(self) -> Mapping[str, Any]: ...
    @property
    def statistics(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Sharing(Recipe):
    """What methods whose clients train one common model, or parts of one, have in common."""

    buffers: Literal["private", "average", "recalibrate"] = "private"  # BatchNorm's statistics:
    # they stay with their client; they are averaged as parameters are; or they stay, and are
    # estimated anew from the client's training windows before it predicts

    def shares(self, path: str) -> bool:
        """Whether a path is federated; the others stay with their client."""
        return not path.startswith("private.")

    def shared(self, paths: Iterable[str]) -> list[str]:
        return [path for path in paths if self.shares(path)]

    def statistics(self, owner: Owner) -> list[str]:
        """The statistics that travel: means and variances of shared layers, not counters."""
        return self.shared(owner.statistics) if self.buffers == "average" else []

    def travels(self, owner: Owner) -> list[str]:
        """All paths that travel."""
        return [*self.shared(owner.params), *self.statistics(owner)]

    def sends(self, card: Card) -> Sent:
        return Sent(self.travels(card))

    def initial(self, fleet: FleetView) -> State:
        """The common model before the first round."""
        return (fleet.params | fleet.statistics).pick(self.travels(fleet))

    def keep(self, client: Client) -> State:
        """The private part of the client's model. Statistics are always in it; where they are
        averaged, what comes down takes their place."""
        private = [path for path in client.card.params if not self.shares(path)]
        return State.of(client.model, private) | State.buffers(client.model)

    def send(self, client: Client) -> State:
        """The federated part of the client's model, after training."""
        if self.buffers == "recalibrate":
            note_forward(client, client.train)  # a device makes itself ready in every round
        return State.of(client.model, self.travels(client.card))

    def prepare(self, client: Client, state: Any) -> Any:
        if self.buffers == "recalibrate":
            recalibrate(client, client.model)
        return state


def is_statistic(path: str) -> bool:
    return _name(path) in ("running_mean", "running_var")


def sound(w: State) -> State:
    """A common model whose variances are not negative, as noise or a liar may have made them."""
    return State({p: t.clamp_min(0) if _name(p) == "running_var" else t for p, t in w.items()})


def _name(path: str) -> str:
    """Of a tensor in its module, without the mark of a model."""
    return path.partition("@")[0].rpartition(".")[2]


@torch.no_grad()
def recalibrate(client: Client, forward: Callable[[Batch], object]) -> None:
    """Statistics become those of the client's training windows, with weights as they are: one
    pass, in which nothing else changes. Layers that it does not reach, as of a sensor that never
    worked, keep theirs."""
    model, windows = client.model.eval(), len(client.train)
    before = State.buffers(model)
    norms = {path: norm for path, norm in model.named_modules() if isinstance(norm, _BatchNorm)}
    momenta = {path: norm.momentum for path, norm in norms.items()}
    parts = -(-windows // PART) if norms else 0
    for norm in norms.values():
        norm.reset_running_stats()
        norm.train().momentum = None  # all parts count alike
    for first in range(parts):  # each has windows from all over, so that they are alike
        forward(client.train.batch(torch.arange(first, windows, parts)))
    for path, norm in norms.items():
        norm.eval().momentum = momenta[path]
    unreached = [path for path, norm in norms.items() if not int(norm.num_batches_tracked or 0)]
    kept = [p for p in before if p.partition("@")[0].rpartition(".")[0] in unreached]
    before.pick(kept).load_into(model)
