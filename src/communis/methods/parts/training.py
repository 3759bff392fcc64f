"""The one local training loop. A method brings a loss, the paths that train, and an adjustment of
the gradients if it has one. What it computes is written down for the device clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, permutations
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from communis.core import diagnostics
from communis.core.contract import Batch, Client, Model, Output, Samples
from communis.core.diagnostics import Diagnostic
from communis.core.errors import CommunisError
from communis.core.groups import groups
from communis.methods.parts.optim import OptimizerName, clip_gradients, make_optimizer
from communis.models.flops import Meter

Loss = Callable[[Output, Batch], Tensor]
Adjust = Callable[[Model], None]
PARTS = ("encoders", "fusion", "head", "unimodal", "private")  # of a model: how paths begin
_meter = Meter()  # remembers what a step costs, by model


@dataclass(frozen=True)
class Trained:
    steps: int
    loss: float  # mean over all samples seen; NaN if there were none


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a client trains; the hyper-parameters that every method with local training shares."""

    lr: float = 0.05  # learning rate of the local optimiser
    epochs: int = 1  # passes over the client's training windows per round
    batch: int = 32  # windows per step
    optimizer: OptimizerName = "sgd"  # its state starts afresh every round, unless `carry`
    momentum: float = 0.0  # sgd only
    weight_decay: float = 0.0  # L2, decoupled in adamw
    max_steps: int = 0  # stop after so many steps per round; 0: whole epochs
    balanced: bool = False  # batches draw the client's classes equally often
    carry: bool = False  # the optimiser's state goes on from round to round on the client
    clip: float = 0.0  # largest Euclidean norm of a step's gradient; 0: gradients are not clipped
    clip_modules: tuple[str, ...] = ()  # prefixes of paths that `clip` bounds, one after the other
    # and nothing else, such as "private." and "encoders."; empty: all parameters as one vector

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal and getattr(self, name) not in get_args(hint):
                options = ", ".join(map(repr, get_args(hint)))
                raise CommunisError(f"{name} must be one of {options}, got {getattr(self, name)!r}")
        if self.lr <= 0 or self.batch < 1 or self.epochs < 0 or self.max_steps < 0:
            raise CommunisError(
                "lr must be positive, batch at least 1, epochs and max_steps at least 0, got "
                f"lr={self.lr}, batch={self.batch}, epochs={self.epochs}, "
                f"max_steps={self.max_steps}"
            )
        if not 0 <= self.momentum < 1 or self.weight_decay < 0:
            raise CommunisError(
                "momentum must be in [0, 1) and weight_decay at least 0, got "
                f"momentum={self.momentum}, weight_decay={self.weight_decay}"
            )
        self._check_clip()

    def check_paths(self, paths: Collection[str]) -> None:
        """Refuses settings that name no path of the fleet's models."""
        for prefix in self.clip_modules:
            if not any(path.startswith(prefix) for path in paths):
                starts = dict.fromkeys(".".join(path.split(".")[:2]) + "." for path in paths)
                raise CommunisError(
                    f"clip_modules: no parameter of this fleet begins with {prefix!r}, so nothing "
                    f"would be clipped; they begin with {', '.join(sorted(starts))}"
                )

    def _check_clip(self) -> None:
        if not 0 <= self.clip < math.inf:
            raise CommunisError(f"clip must be a finite norm of at least 0, got {self.clip}")
        if self.clip_modules and not self.clip:
            raise CommunisError("clip_modules says what clip bounds, but clip is 0: set clip")
        for prefix in self.clip_modules:
            if prefix.partition(".")[0] not in PARTS:
                raise CommunisError(
                    f"clip_modules: no path begins with {prefix!r}; prefixes start with one of "
                    f"{', '.join(f'{part}.' for part in PARTS)}"
                )
        for one, other in permutations(self.clip_modules, 2):
            if one.startswith(other):
                raise CommunisError(
                    f"clip_modules: {one!r} is a part of {other!r}, so its gradient would be "
                    "clipped twice: name one of them"
                )

    def passes(self, samples: int) -> int:
        """How many windows a round's training passes, of so many."""
        per_epoch = -(-samples // self.batch)
        steps = self.epochs * per_epoch
        steps = min(steps, self.max_steps) if self.max_steps else steps
        whole, rest = divmod(steps, max(1, per_epoch))
        return whole * samples + rest * self.batch

    def train(
        self,
        client: Client,
        *,
        loss: Loss | None = None,
        paths: Collection[str] | None = None,
        adjust: Adjust | None = None,
        epochs: int | None = None,
        rates: Mapping[str, float] | None = None,
        memory: str = "",
    ) -> Trained:
        """Trains `client.model` in place; parameters outside `paths` keep their bits.

        loss: task loss unless given. adjust: called after every backward pass, before gradients are
        clipped.
        rates: factors on the learning rate, by path, beside those of the method itself; 1 where
        there is none.
        memory: which of the client's optimiser memories goes on, if `carry`: a method that trains
        several models or losses in a round gives each a name of its own.
        """
        model, task, data = client.model, client.task, client.train
        loss = loss or (lambda output, batch: task.loss(output.prediction, batch.target))
        own = model.by_path[0]
        chosen = {path: p for path, p in own.items() if paths is None or path in paths}
        rest = [p for path, p in own.items() if paths is not None and path not in paths]
        frozen = [p for p in rest if p.requires_grad]
        passes = self.epochs if epochs is None else epochs
        if not len(data) or not chosen:
            passes = 0
        rates = {**self.rates(client), **(rates or {})}
        factors = [rates.get(path, 1.0) for path in chosen] if rates else []
        optimizer = make_optimizer(
            self.optimizer,
            list(chosen.values()),
            self.lr,
            self.momentum,
            self.weight_decay,
            factors,
        )
        clipped = self._clipped(chosen)
        names = list(chosen)
        apart = f"{memory}/" if memory else ""
        if self.carry:
            own_memory = {
                k.removeprefix(apart): t for k, t in client.memory.items() if k.startswith(apart)
            }
            optimizer.recall(names, own_memory)
        seen, steps, total = 0, 0, 0.0
        model.train()
        for p in frozen:
            p.requires_grad_(False)
        try:
            with client.streams.torch("client", client.round, client.card.id):
                for batch in self._batches(client, passes):
                    for p in chosen.values():
                        p.grad = None
                    value = loss(model(batch), batch)
                    value.backward()  # type: ignore[no-untyped-call]
                    if adjust is not None:
                        adjust(model)
                    for group in clipped:
                        clip_gradients(group, self.clip)
                    optimizer.step()
                    steps, seen = steps + 1, seen + len(batch)
                    total += float(value.detach()) * len(batch)
            if seen and client.timed:
                _note_training(client, loss, list(chosen), seen)
        finally:
            for p in frozen:
                p.requires_grad_(True)
            for p in chosen.values():
                p.grad = None
        if self.carry:
            client.memory.update({apart + k: t for k, t in optimizer.memory(names).items()})
        client.log["loss"] = total / seen if seen else float("nan")
        return Trained(steps, client.log["loss"])

    def rates(self, client: Client) -> Mapping[str, float]:
        """Factors on the learning rate, by path, in all of the method's local training."""
        return {}

    def _clipped(self, chosen: Mapping[str, nn.Parameter]) -> list[list[nn.Parameter]]:
        """The groups of parameters whose gradients are clipped, each group as one vector."""
        if not self.clip:
            return []
        prefixes = self.clip_modules or ("",)
        groups = [[p for path, p in chosen.items() if path.startswith(one)] for one in prefixes]
        return [group for group in groups if group]

    def _batches(self, client: Client, passes: int) -> Iterator[Batch]:
        draw = client.generator("batches")
        orders = (self._order(client, draw) for _ in range(passes))
        parts = (part for order in orders for part in torch.split(order, self.batch))
        return map(client.train.batch, islice(parts, self.max_steps or None))

    def _order(self, client: Client, draw: np.random.Generator) -> Tensor:
        """One pass over the client's training windows; if balanced, its classes take turns, and
        windows of rare classes come more than once."""
        if not self.balanced:
            return torch.from_numpy(draw.permutation(len(client.train)))
        if not client.task.classes:
            raise CommunisError("balanced = true needs a task with classes")
        return in_turn(client.task.labels(client.train.target), draw)


def in_turn(labels: Tensor, draw: np.random.Generator) -> Tensor:
    """As many rows as there are labels, class by class in turn; each class in an order of its
    own, over and over."""
    of_class = [np.flatnonzero(labels.cpu().numpy() == c) for c in sorted(set(labels.tolist()))]
    turns = -(-len(labels) // max(1, len(of_class)))
    columns = [np.resize(draw.permutation(rows), turns) for rows in of_class]
    order = draw.permutation(len(columns))
    return torch.from_numpy(np.stack(columns, 1)[:, order].ravel()[: len(labels)])


def note_forward(client: Client, samples: Samples, windows: int | None = None) -> None:
    """Adds a pass over samples (or so many of them) that trains nothing to the client's log, for
    the device clock."""
    passed = len(samples) if windows is None else windows
    if not client.timed or not passed:
        return
    _add(client.log, diagnostics.WINDOWS, passed)
    if client.timed == "exact":
        forward, _ = _flops(client, _features, samples, "forward", passed / len(samples))
        _add(client.log, diagnostics.FLOPS_FORWARD, forward)


def _note_training(client: Client, loss: Loss, paths: list[str], seen: int) -> None:
    """Adds what this training took; FLOPs only where the clock goes by them."""
    trained = groups(paths)
    _add(client.log, diagnostics.WINDOWS, seen)
    _add(client.log, diagnostics.GROUP_WINDOWS, seen * len(trained))
    client.log.update({diagnostics.TRAINED.of(group): 1.0 for group in trained})
    if client.timed == "exact":
        key, passes = (tuple(paths), getattr(loss, "__code__", loss)), seen / len(client.train)
        forward, backward = _flops(client, loss, client.train, key, passes)
        _add(client.log, diagnostics.FLOPS_FORWARD, forward)
        _add(client.log, diagnostics.FLOPS_BACKWARD, backward)


def _flops(
    client: Client, loss: Loss, samples: Samples, key: Hashable, passes: float
) -> tuple[float, float]:
    with client.streams.torch("clock", client.round, client.card.id):
        return _meter.spent(client.model, loss, samples, key, passes, client.card.modalities)


def _add(log: dict[str, float], what: Diagnostic, amount: float) -> None:
    log[what.name] = log.get(what.name, 0.0) + amount


def _features(output: Output, batch: Batch) -> Tensor:
    return output.embedding.sum()
