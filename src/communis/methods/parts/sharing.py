"""The parts of a model that are sent, and the treatment of BatchNorm statistics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from communis.core.contract import Batch, Card, Client, FleetView, Sent
from communis.core.state import State
from communis.methods.parts.training import Recipe, note_forward

PART = 512  # largest number of windows per forward pass when statistics are estimated


class Owner(Protocol):
    """A client's card, or the fleet."""

    @property
    def params(self) -> Mapping[str, Any]: ...
    @property
    def statistics(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Sharing(Recipe):
    """The common part of methods in which clients train one common model, or parts of it."""

    buffers: Literal["private", "average", "recalibrate"] = "private"  # treatment of BatchNorm
    # statistics; private: they stay on the client; average: they are averaged like parameters;
    # recalibrate: they stay, and are estimated from the client's training windows before
    # predictions

    def shares(self, path: str) -> bool:
        """Returns whether a path is federated. Other paths stay on the client."""
        return not path.startswith("private.")

    def shared(self, paths: Iterable[str]) -> list[str]:
        """Returns the federated paths among these."""
        return [path for path in paths if self.shares(path)]

    def statistics(self, owner: Owner) -> list[str]:
        """Returns the paths of the statistics that are sent: means and variances of shared layers,
        without counters."""
        return self.shared(owner.statistics) if self.buffers == "average" else []

    def travels(self, owner: Owner) -> list[str]:
        """Returns all paths that are sent."""
        return [*self.shared(owner.params), *self.statistics(owner)]

    def sends(self, card: Card) -> Sent:
        return Sent(self.travels(card))

    def initial(self, fleet: FleetView) -> State:
        """Returns the common model before the first round."""
        return (fleet.params | fleet.statistics).pick(self.travels(fleet))

    def keep(self, client: Client) -> State:
        """Returns the private part of the client's model. It always includes the statistics; if
        they are averaged, the received ones replace them."""
        private = [path for path in client.card.params if not self.shares(path)]
        return State.of(client.model, private) | State.buffers(client.model)

    def send(self, client: Client) -> State:
        """Returns the federated part of the client's model, after training."""
        if self.buffers == "recalibrate":
            # A device recalibrates in every round, also if the run does not score the round.
            note_forward(client, client.train)
        return State.of(client.model, self.travels(client.card))

    def prepare(self, client: Client, state: Any) -> Any:
        if self.buffers == "recalibrate":
            recalibrate(client, client.model)
        return state

    def needs_to_predict(self, card: Card) -> Collection[str]:
        """A newcomer can estimate statistics, as this needs no labels."""
        return card.params if self.buffers == "recalibrate" else card.shapes


def is_statistic(path: str) -> bool:
    """Returns whether the path is a mean or variance of a BatchNorm layer."""
    return _name(path) in ("running_mean", "running_var")


def nonnegative_variances(w: State) -> State:
    """Returns the model with BatchNorm variances of at least zero, as privacy noise or an attacker
    may make them negative."""
    return State({p: t.clamp_min(0) if _name(p) == "running_var" else t for p, t in w.items()})


def _name(path: str) -> str:
    """Returns the name of a tensor in its module, without the model's mark."""
    return path.partition("@")[0].rpartition(".")[2]


@torch.no_grad()
def recalibrate(client: Client, forward: Callable[[Batch], object]) -> None:
    """Sets the BatchNorm statistics to those of the client's training windows, or of a newcomer's
    unlabelled ones, under the present weights, in one pass that changes nothing else. Layers that
    the pass does not reach, such as those of a sensor that never worked, keep their statistics."""
    model = client.model.eval()
    samples = client.train if client.unlabelled is None else client.unlabelled
    windows = len(samples)
    before = State.buffers(model)
    norms = {
        model.path_of(name): norm
        for name, norm in model.named_modules()
        if isinstance(norm, _BatchNorm)
    }
    momenta = {path: norm.momentum for path, norm in norms.items()}
    parts = -(-windows // PART) if norms else 0
    for norm in norms.values():
        norm.reset_running_stats()
        norm.train().momentum = None  # all parts have equal weight
    for first in range(parts):
        # A part takes every n-th window, so that all parts have a similar distribution.
        forward(samples.batch(torch.arange(first, windows, parts)))
    for path, norm in norms.items():
        norm.eval().momentum = momenta[path]
    unreached = [path for path, norm in norms.items() if not int(norm.num_batches_tracked or 0)]
    kept = [p for p in before if p.partition("@")[0].rpartition(".")[0] in unreached]
    before.pick(kept).load_into(model)
