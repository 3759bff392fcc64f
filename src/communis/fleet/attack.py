"""Attacks: clients that lie, knowingly or because a sensor is broken.

Message attacks change what a client sends, data attacks what it learns from; otherwise attackers
train as everybody does. Every draw comes from the client's streams, so a run can be repeated.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from communis.core.contract import Batch, Client, Modality, Samples, Task
from communis.core.errors import CommunisError
from communis.core.streams import Streams

log = logging.getLogger("communis")

Kind = Literal[
    "none",
    "gaussian",
    "sign_flip",
    "shift",
    "replay",
    "label_flip",
    "stuck_sensor",
    "axis_flip",
]
SCALES = {"gaussian": 10.0, "sign_flip": 5.0, "shift": 10.0}  # where none is given
OF_MESSAGES = (*SCALES, "replay")
OF_SENSORS = ("stuck_sensor", "axis_flip")


@dataclass(frozen=True)
class Attack:
    """Who lies, how and from when; as it stands, nobody does."""

    kind: Kind = "none"
    attackers: tuple[int, ...] = ()  # sorted
    scale: float = 0.0  # 0: what suits the kind
    start: int = 1  # the first round in which they attack
    modality: Modality = ""  # whose sensor is broken; empty: all that an attacker has

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise CommunisError(f"no kind {self.kind!r}; there are {', '.join(get_args(Kind))}")
        if not 0 <= self.scale < math.inf:
            raise CommunisError(f"scale must be 0 (what suits the kind) or more, got {self.scale}")
        if self.start < 1:
            raise CommunisError(f"start is a round, the first being 1, got {self.start}")
        if self.scale and self.kind not in ("none", *SCALES):
            raise CommunisError(
                f"kind = {self.kind!r} has no scale, got {self.scale}: leave it out, or choose "
                f"{', '.join(SCALES)}"
            )
        if self.modality and self.kind not in ("none", *OF_SENSORS):
            raise CommunisError(
                f"kind = {self.kind!r} is of no sensor, got modality = {self.modality!r}: leave "
                f"it out, or choose {', '.join(OF_SENSORS)}"
            )
        set_field = object.__setattr__  # what was left out becomes what suits the kind
        set_field(self, "attackers", tuple(sorted(set(self.attackers))))
        set_field(self, "scale", self.scale or SCALES.get(self.kind, 0.0))

    def check(self, suites: Sequence[tuple[Modality, ...]], task: Task) -> None:
        """Refuses what cannot be attacked in a fleet of clients with these sensors and task."""
        if self.attackers and self.attackers[-1] >= len(suites):
            raise CommunisError(
                f"[attack] client {self.attackers[-1]} is to attack, but there are {len(suites)}"
            )
        sensors = sorted({m for suite in suites for m in suite})
        if self.modality and self.modality not in sensors:
            raise CommunisError(
                f"[attack] modality = {self.modality!r}, but no client has it; "
                f"there are {', '.join(sensors)}"
            )
        if self.modality and not any(self.modality in suites[i] for i in self.attackers):
            log.warning("no attacker has %s: the attack does nothing", self.modality)
        if self.kind == "label_flip" and not 0 < task.classes == task.outputs:
            raise CommunisError(
                '[attack] kind = "label_flip" needs a task with classes and nothing else, got '
                f"{type(task).__name__}: choose another kind"
            )

    def attacks(self, client: int, round: int) -> bool:
        return self.kind != "none" and round >= self.start and client in self.attackers

    def spoiled(self, client: Client) -> Client:
        """The client with the data that it learns from; itself if nothing is wrong with them."""
        if not self.attacks(client.card.id, client.round):
            return client
        if self.kind == "label_flip":
            return replace(client, train=Mislabelled(client.train, client.task.classes))
        shown = self._shown(client) if self.kind in OF_SENSORS else {}
        if not shown:
            return client
        train, val, test = (Missensed(x, shown) for x in (client.train, client.val, client.test))
        return replace(client, train=train, val=val, test=test)

    def message(
        self,
        client: Client,
        up: dict[str, Tensor],
        down: Mapping[str, Tensor],
        first: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """What the client sends instead of `up`. Where `down` has a tensor of the same name and
        shape, the change since then is attacked, else the value itself.
        first: the first that it made as an attacker; empty: this one."""
        if self.kind not in OF_MESSAGES or not self.attacks(client.card.id, client.round):
            return up
        if self.kind == "replay":  # as a whole: rows, counts and masks belong together
            return dict(first or up)
        rng, sent = client.generator("attack"), dict(up)
        for name, honest in up.items():
            if _is_content(honest):
                known = name in down and down[name].shape == honest.shape
                base = (
                    (down[name] if known else torch.zeros_like(honest)).to(honest.device).double()
                )
                lie = base + self._lie(name, honest.double() - base, client.streams, rng)
                most = torch.finfo(honest.dtype).max  # Inf would be refused, as would be
                least = 0.0 if name.endswith("running_var") else -most  # a variance below zero
                sent[name] = lie.clamp(least, most).to(honest.dtype)
        return sent

    def _lie(self, name: str, truth: Tensor, streams: Streams, rng: np.random.Generator) -> Tensor:
        """What stands for `truth` (..., d). A row of zeros says nothing, such as that of a class
        that the client does not have: it stays, and does not count in the size of the rest."""
        if self.kind == "sign_flip":
            return -self.scale * truth
        spoken = (truth != 0).any(-1, keepdim=True).expand_as(truth)
        size = self.scale * (truth.square().sum() / spoken.sum().clamp_min(1)).sqrt()
        if self.kind == "gaussian":
            noise = torch.from_numpy(rng.standard_normal(tuple(truth.shape))).to(truth)
            return size * noise * spoken
        return truth + size * common(name, truth.shape[-1], streams).to(truth) * spoken

    def _shown(self, client: Client) -> dict[Modality, Change]:
        """What becomes of the windows of each sensor that is broken."""
        broken = [m for m in client.card.modalities if self.modality in ("", m)]
        if self.kind == "axis_flip":
            return dict.fromkeys(broken, half_turn)
        values = {m: first_value(client.train, m) for m in broken}
        return {m: stuck_at(value) for m, value in values.items() if value is not None}


@dataclass(frozen=True)
class AttackConfig:
    """Who lies, how and from when: the `[attack]` table."""

    kind: Kind = "none"
    count: int = 0  # so many attackers, drawn by seed: those of a smaller count are among them
    clients: tuple[int, ...] = ()  # or these
    scale: float = 0.0  # how far messages are off; 0: gaussian 10, sign_flip 5, shift 10
    start: int = 1  # the first round in which they attack
    modality: str = ""  # whose sensor is broken (stuck_sensor, axis_flip); empty: all

    def __post_init__(self) -> None:
        self._by(())  # refuses what cannot be
        if self.count and self.clients:
            raise CommunisError("count and clients each say who attacks: give one")
        if self.count < 0:
            raise CommunisError(f"count must be 0 or more, got {self.count}")

    def make(self, clients: int, streams: Streams) -> Attack:
        """The attack on a fleet of so many clients."""
        unknown = [i for i in self.clients if not 0 <= i < clients]
        if unknown:
            raise CommunisError(
                f"[attack] clients names {unknown}, but the fleet has clients 0 to {clients - 1}"
            )
        many = len(set(self.clients)) or self.count
        if many and many >= clients:
            raise CommunisError(
                f"[attack] {many} attackers in a fleet of {clients}: at least one client must be "
                f"honest, so give at most {clients - 1}"
            )
        if self.kind == "none" or not many:
            return Attack()
        if 2 * many >= clients:
            log.warning(
                "%d of %d clients attack: no rule can help against half or more", many, clients
            )
        order = streams.generator("attackers").permutation(clients)
        return self._by(self.clients or tuple(order[:many].tolist()))

    def _by(self, attackers: tuple[int, ...]) -> Attack:
        return Attack(self.kind, attackers, self.scale, self.start, self.modality)


def common(name: str, size: int, streams: Streams) -> Tensor:
    """(size,) of root mean square 1: where all colluders push the rows of the tensor `name`, in
    every round."""
    draw = streams.generator("collusion", zlib.crc32(name.encode()), size).standard_normal(size)
    return torch.from_numpy(draw / np.sqrt(np.square(draw).mean()))


def _is_content(tensor: Tensor) -> bool:
    """Whether a lie could pass: not in single numbers, counts and masks, which are checked."""
    return tensor.is_floating_point() and tensor.ndim > 0 and bool((tensor % 1 != 0).any())


Change = Callable[[Tensor], Tensor]  # of windows (B, channels, ...)


def half_turn(x: Tensor) -> Tensor:
    """Windows of a device worn the wrong way round, turned by 180 degrees about its third axis: the
    first two of every three channels change sign. Of channels that are no triples, the first."""
    signs = x.new_ones(x.shape[1])
    if len(signs) % 3 == 0:
        signs[0::3] = signs[1::3] = -1
    else:
        signs[0] = -1
    return x * _along_channels(signs, x)


def stuck_at(value: Tensor) -> Change:
    """Windows in which every channel shows its value of (channels,) all the time."""
    return lambda x: _along_channels(value, x).expand_as(x)


def first_value(samples: Samples, modality: Modality) -> Tensor | None:
    """(channels,): the first value of every channel in the first window that has the modality."""
    for indices in torch.split(torch.arange(len(samples)), 16):
        batch = samples.batch(indices)
        there = batch.inputs[modality][batch.present[modality]]
        if len(there):
            return there[0].flatten(1)[:, 0]
    return None


def _along_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *(1,) * (x.ndim - 2))


@dataclass(frozen=True)
class _Spoiled:
    """Samples as an attacker has them: changed batch by batch, so that nothing is copied."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def missing(self) -> Mapping[Modality, int]:
        return self.samples.missing


@dataclass(frozen=True)
class Mislabelled(_Spoiled):
    """Class y is called classes - 1 - y."""

    classes: int

    @cached_property
    def target(self) -> Tensor:
        return self.classes - 1 - self.samples.target

    def batch(self, indices: Tensor) -> Batch:
        batch = self.samples.batch(indices)
        return replace(batch, target=self.classes - 1 - batch.target)


@dataclass(frozen=True)
class Missensed(_Spoiled):
    """Sensors show something else; windows that lack one still do."""

    shown: Mapping[Modality, Change]

    @property
    def target(self) -> Tensor:
        return self.samples.target

    def batch(self, indices: Tensor) -> Batch:
        batch = self.samples.batch(indices)
        inputs = dict(batch.inputs)
        for m, change in self.shown.items():
            x = inputs[m]
            there = batch.present[m].view(-1, *(1,) * (x.ndim - 1))
            inputs[m] = torch.where(there, change(x), x)
        return replace(batch, inputs=inputs)
