"""The local training loop of all methods. A method defines the loss, the paths that train and,
optionally, an adjustment of the gradients. The loop logs its computation for the device clock."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Literal, get_args, get_origin, get_type_hints

import numpy as np
import torch
from torch import Tensor, nn

from communis.core import diagnostics
from communis.core.contract import Batch, Client, Model, Output, Samples, Task, Trained
from communis.core.diagnostics import Diagnostic
from communis.core.errors import CommunisError
from communis.core.groups import groups
from communis.core.names import PARTS
from communis.methods.parts.optim import (
    Optimizer,
    OptimizerName,
    clip_gradients,
    make_optimizer,
)
from communis.methods.parts.ranges import RANGES, refuse_out_of_range
from communis.models.flops import Meter

Loss = Callable[[Output, Batch], Tensor]
Adjust = Callable[[Model], None]
_meter = Meter()  # caches FLOPs by model


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Local training, with the hyper-parameters that all methods with local training share."""

    lr: float = 0.05  # learning rate of the local optimiser, above 0
    epochs: int = 1  # passes over the client's training windows per round
    batch: int = 32  # windows per step
    optimizer: OptimizerName = "sgd"  # local optimiser; its state is reset every round unless
    # `carry` is set
    momentum: float = 0.0  # momentum of sgd, in [0, 1); refused with other optimisers unless 0
    weight_decay: float = 0.0  # weight of L2 regularisation; decoupled in adamw
    max_steps: int = 0  # largest number of steps per round; 0: complete epochs
    balanced: bool = False  # batches have the client's classes in equal shares
    carry: bool = False  # clients keep the optimiser's state from round to round
    clip: float = 0.0  # largest Euclidean norm of a step's gradient; 0: gradients are not clipped
    clip_modules: tuple[str, ...] = ()  # path prefixes, such as "private." and "encoders.", whose
    # gradients are clipped, each prefix separately, while all others are not; empty: all parameters
    # are clipped as one vector

    def __post_init__(self) -> None:
        for name, hint in get_type_hints(type(self)).items():
            if get_origin(hint) is Literal and getattr(self, name) not in get_args(hint):
                options = ", ".join(map(repr, get_args(hint)))
                raise CommunisError(f"{name} must be one of {options}, got {getattr(self, name)!r}")
        refuse_out_of_range({name: getattr(self, name) for name in RANGES})
        if self.momentum and self.optimizer != "sgd":
            raise CommunisError(
                f"momentum = {self.momentum} has no effect with optimizer = {self.optimizer!r}: "
                "set momentum = 0 or optimizer = 'sgd'"
            )
        self._check_clip()

    def check_paths(self, paths: Collection[str]) -> None:
        """Refuses prefixes that match no path of the fleet's models."""
        for prefix in self.clip_modules:
            if not any(path.startswith(prefix) for path in paths):
                starts = {".".join(path.split(".")[:2]) + "." for path in paths}
                raise CommunisError(
                    f"clip_modules: no path of this fleet's models begins with {prefix!r}; they "
                    f"begin with {', '.join(sorted(starts))}"
                )

    def _check_clip(self) -> None:
        if self.clip_modules and not self.clip:
            raise CommunisError(
                "clip_modules has no effect with clip = 0: set clip, or remove clip_modules"
            )
        for prefix in self.clip_modules:
            if prefix.partition(".")[0] not in PARTS:
                raise CommunisError(
                    f"clip_modules: no path begins with {prefix!r}; paths begin with one of "
                    f"{', '.join(f'{part}.' for part in PARTS)}"
                )
        for one, other in permutations(self.clip_modules, 2):
            if one.startswith(other):
                raise CommunisError(
                    f"clip_modules: {one!r} is a part of {other!r}, so its gradient would be "
                    "clipped twice: remove one of them"
                )

    def passes(self, samples: int) -> int:
        """Returns the number of windows that a round's training processes on a client with
        `samples` windows."""
        steps_per_epoch = -(-samples // self.batch)
        steps = self.epochs * steps_per_epoch
        if self.max_steps:
            steps = min(steps, self.max_steps)
        epochs, rest = divmod(steps, max(1, steps_per_epoch))
        return epochs * samples + rest * self.batch

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
        """Trains `client.model` in place and returns the number of steps and the mean loss.
        Parameters outside of `paths` keep their bits.

        loss: the task loss unless given.
        paths: the parameters that train; all unless given.
        adjust: called after every backward pass, before gradients are clipped.
        epochs: the setting `epochs` unless given.
        rates: factors on the learning rate by path, 1 for other paths. They replace those of the
        method for the same path.
        memory: with `carry`, the name of the client's optimiser memory. A method that trains
        several models or losses in a round uses a different name for each.
        """
        if client.trained is not None:
            self._check_plain(loss, paths, adjust, epochs, rates)
            return client.trained
        model = client.model
        loss = loss or task_loss(client.task)
        parameters = model.by_path[0]
        trained = {path: p for path, p in parameters.items() if paths is None or path in paths}
        others = [p for path, p in parameters.items() if path not in trained]
        frozen = [p for p in others if p.requires_grad]
        passes = self.epochs if epochs is None else epochs
        if not len(client.train) or not trained:
            passes = 0
        optimizer = self._optimizer(client, trained, rates or {}, memory)
        clipped = self._clipped(trained)
        sizes: list[int] = []  # windows of each step
        values: list[Tensor] = []  # loss of each step; read at the end, as an accelerator is ahead
        model.train()
        for p in frozen:
            p.requires_grad_(False)
        try:
            with client.streams.torch("client", client.round, client.card.id):
                for rows in self._steps(client, passes):
                    batch = client.train.batch(rows)
                    for p in trained.values():
                        p.grad = None
                    value = loss(model(batch), batch)
                    value.backward()  # type: ignore[no-untyped-call]
                    if adjust is not None:
                        adjust(model)
                    for group in clipped:
                        clip_gradients(group, self.clip)
                    optimizer.step()
                    sizes.append(len(batch))
                    values.append(value.detach())
            if sizes and client.timed:
                note_training(client, loss, list(trained), sum(sizes))
        finally:
            for p in frozen:
                p.requires_grad_(True)
            for p in trained.values():
                p.grad = None
        if self.carry:
            _remember(client, memory, optimizer.memory(list(trained)))
        result = Trained(len(sizes), mean_loss(values, sizes))
        client.log[diagnostics.LOSS.name] = result.loss
        return result

    @property
    def plain_training(self) -> bool:
        """Whether `local` begins with `train(client)` without further arguments. Several clients
        can then be trained at once before `local` is called (together.py)."""
        return False

    def rates(self, client: Client) -> Mapping[str, float]:
        """Returns factors on the learning rate by path, for all local training of the method."""
        return {}

    def _optimizer(
        self,
        client: Client,
        trained: Mapping[str, nn.Parameter],
        rates: Mapping[str, float],
        memory: str,
    ) -> Optimizer:
        rates = {**self.rates(client), **rates}
        factors = [rates.get(path, 1.0) for path in trained] if rates else []
        optimizer = make_optimizer(
            self.optimizer,
            list(trained.values()),
            self.lr,
            self.momentum,
            self.weight_decay,
            factors,
        )
        if self.carry:
            optimizer.recall(list(trained), _recalled(client, memory))
        return optimizer

    def _check_plain(self, *given: object) -> None:
        """Refuses arguments of `train` where a client was trained without them."""
        if any(argument is not None for argument in given):
            raise CommunisError(
                f"{type(self).__name__} declares plain_training, but trains with a loss, paths or "
                "rates of its own: correct the declaration, or set run.together = 1"
            )

    def _clipped(self, trained: Mapping[str, nn.Parameter]) -> list[list[nn.Parameter]]:
        """Returns the groups of parameters whose gradients are clipped, each group as one
        vector."""
        if not self.clip:
            return []
        clipped = []
        for prefix in self.clip_modules or ("",):
            group = [p for path, p in trained.items() if path.startswith(prefix)]
            if group:
                clipped.append(group)
        return clipped

    def orders(self, client: Client, passes: int) -> Iterator[Tensor]:
        """Yields the rows of the training windows in the order of each pass, at most max_steps
        batches in all. They lie where the windows lie."""
        draw = client.generator("batches")
        left = self.max_steps * self.batch  # windows
        for _ in range(passes):
            order = self._order(client, draw).to(client.train.target.device)
            if self.max_steps:
                order = order[:left]
                left -= self.batch * -(-len(order) // self.batch)
            yield order
            if self.max_steps and not left:
                return

    def _steps(self, client: Client, passes: int) -> Iterator[Tensor]:
        """Yields the rows of each batch."""
        for order in self.orders(client, passes):
            yield from torch.split(order, self.batch)

    def _order(self, client: Client, draw: np.random.Generator) -> Tensor:
        """Returns the order of the client's training windows in one pass. If balanced, its classes
        take turns, and windows of rare classes are repeated."""
        if not self.balanced:
            return torch.from_numpy(draw.permutation(len(client.train)))
        if not client.task.classes:
            raise CommunisError("balanced = true needs a task with classes")
        return balanced_order(client.task.labels(client.train.target), draw)


def balanced_order(labels: Tensor, draw: np.random.Generator) -> Tensor:
    """Returns as many row indices as there are labels, with the classes in turn. The rows of each
    class are in random order and repeated as necessary."""
    rows_of_classes = [
        np.flatnonzero(labels.cpu().numpy() == c) for c in sorted(set(labels.tolist()))
    ]
    turns = -(-len(labels) // max(1, len(rows_of_classes)))
    columns = [np.resize(draw.permutation(rows), turns) for rows in rows_of_classes]
    order = draw.permutation(len(columns))
    return torch.from_numpy(np.stack(columns, 1)[:, order].ravel()[: len(labels)])


def note_forward(client: Client, samples: Samples, windows: int | None = None) -> None:
    """Logs a forward pass without training for the device clock, over these samples or over only
    some of their windows."""
    passed = len(samples) if windows is None else windows
    if not client.timed or not passed:
        return
    _add(client.log, diagnostics.WINDOWS, passed)
    if client.timed == "exact":
        forward, _ = _flops(client, _features, samples, "forward", passed / len(samples))
        _add(client.log, diagnostics.FLOPS_FORWARD, forward)


def note_training(client: Client, loss: Loss, paths: list[str], seen: int) -> None:
    """Logs the computation of this training; FLOPs only if the clock uses them."""
    trained = groups(paths)
    _add(client.log, diagnostics.WINDOWS, seen)
    _add(client.log, diagnostics.GROUP_WINDOWS, seen * len(trained))
    client.log.update({diagnostics.TRAINED.of(group): 1.0 for group in trained})
    if client.timed == "exact":
        key = (tuple(paths), getattr(loss, "__code__", loss))
        passes = seen / len(client.train)
        forward, backward = _flops(client, loss, client.train, key, passes)
        _add(client.log, diagnostics.FLOPS_FORWARD, forward)
        _add(client.log, diagnostics.FLOPS_BACKWARD, backward)


def _flops(
    client: Client, loss: Loss, samples: Samples, key: Hashable, passes: float
) -> tuple[float, float]:
    """Returns the FLOPs, forward and backward, of these passes over the samples."""
    with client.streams.torch("clock", client.round, client.card.id):
        return _meter.spent(client.model, loss, samples, key, passes, client.card.modalities)


def _add(log: dict[str, float], what: Diagnostic, amount: float) -> None:
    log[what.name] = log.get(what.name, 0.0) + amount


def _features(output: Output, batch: Batch) -> Tensor:
    """A loss of the embedding, for passes that do not train."""
    return output.embedding.sum()


def task_loss(task: Task) -> Loss:
    """Returns the loss of the task, by which a client trains unless its method says otherwise."""
    return lambda output, batch: task.loss(output.prediction, batch.target)


def mean_loss(values: Sequence[Tensor], sizes: Sequence[int]) -> float:
    """Returns the mean over windows of the losses of all steps; NaN without steps."""
    if not sizes:
        return math.nan
    total = 0.0
    for loss, size in zip(torch.cat([v.reshape(1) for v in values]).tolist(), sizes, strict=True):
        total += loss * size  # not `sum`, whose rounding depends on the version of Python
    return total / sum(sizes)


def _recalled(client: Client, memory: str) -> dict[str, Tensor]:
    """Returns the client's optimiser memory of this name."""
    prefix = f"{memory}/" if memory else ""
    own = {key: tensor for key, tensor in client.memory.items() if key.startswith(prefix)}
    return {key.removeprefix(prefix): tensor for key, tensor in own.items()}


def _remember(client: Client, memory: str, state: Mapping[str, Tensor]) -> None:
    """Stores the optimiser's state in the client's memory under this name."""
    prefix = f"{memory}/" if memory else ""
    client.memory.update({prefix + key: tensor for key, tensor in state.items()})
