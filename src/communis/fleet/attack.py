"""Attacks: clients that send false messages, on purpose or because a sensor is broken.

Message attacks change what a client sends, data attacks change what it trains on; otherwise
attackers train like all clients. Every draw comes from the client's streams, so a run can be
repeated.
"""

from __future__ import annotations

import logging
import math
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
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
SCALES = {"gaussian": 10.0, "sign_flip": 5.0, "shift": 10.0}  # defaults
OF_MESSAGES = (*SCALES, "replay")
OF_SENSORS = ("stuck_sensor", "axis_flip")


@dataclass(frozen=True)
class Attack:
    """The attackers, the kind of attack and its first round; by default there are none."""

    kind: Kind = "none"
    attackers: tuple[int, ...] = ()  # sorted
    scale: float = 0.0  # 0: the default of the kind
    start: int = 1  # the first round in which they attack
    modality: Modality = ""  # modality of the broken sensor; empty: all that an attacker has

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise CommunisError(f"no kind {self.kind!r}; there are {', '.join(get_args(Kind))}")
        if not 0 <= self.scale < math.inf:
            raise CommunisError(
                f"scale must be 0 (the default of the kind) or more, got {self.scale}"
            )
        if self.start < 1:
            raise CommunisError(f"start must be a round, and the first is 1, got {self.start}")
        if self.scale and self.kind not in ("none", *SCALES):
            raise CommunisError(
                f"kind = {self.kind!r} has no scale, got {self.scale}: leave it out, or choose "
                f"{', '.join(SCALES)}"
            )
        if self.modality and self.kind not in ("none", *OF_SENSORS):
            raise CommunisError(
                f"kind = {self.kind!r} attacks no sensor, got modality = {self.modality!r}: leave "
                f"it out, or choose {', '.join(OF_SENSORS)}"
            )
        set_field = object.__setattr__
        set_field(self, "attackers", tuple(sorted(set(self.attackers))))
        set_field(self, "scale", self.scale or SCALES.get(self.kind, 0.0))

    def check(self, suites: Sequence[tuple[Modality, ...]], task: Task) -> None:
        """Raises an error if the attack is impossible in a fleet with these sensors and task."""
        if self.attackers and self.attackers[-1] >= len(suites):
            raise CommunisError(
                f"[attack] client {self.attackers[-1]} is an attacker, but the fleet has "
                f"{len(suites)} clients"
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
                '[attack] kind = "label_flip" needs a task with classes only, got '
                f"{type(task).__name__}: choose another kind"
            )

    def attacks(self, client: int, round: int) -> bool:
        """Whether the client attacks in this round."""
        return self.kind != "none" and round >= self.start and client in self.attackers

    def spoiled(self, client: Client) -> Client:
        """Returns the client with attacked data, or itself if the attack leaves its data alone."""
        if not self.attacks(client.card.id, client.round):
            return client
        if self.kind == "label_flip":
            return replace(client, train=Mislabelled(client.train, client.task.classes))
        changes = self._changes(client) if self.kind in OF_SENSORS else {}
        if not changes:
            return client
        return replace(
            client,
            train=Missensed(client.train, changes),
            val=Missensed(client.val, changes),
            test=Missensed(client.test, changes),
        )

    def message(
        self,
        client: Client,
        up: dict[str, Tensor],
        down: Mapping[str, Tensor],
        first: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """Returns what the client sends instead of `up`. If `down` has a tensor of the same name
        and shape, the change since then is attacked, otherwise the value itself.

        first: the first message that the client made as an attacker; empty: this one.
        """
        if self.kind not in OF_MESSAGES or not self.attacks(client.card.id, client.round):
            return up
        if self.kind == "replay":  # as a whole: rows, counts and masks belong together
            return dict(first or up)
        rng = client.generator("attack")
        sent = dict(up)
        for name, honest in up.items():
            if _is_content(honest):
                received = name in down and down[name].shape == honest.shape
                base = down[name] if received else torch.zeros_like(honest)
                base = base.to(honest.device).double()
                false = base + self._falsified(name, honest.double() - base, client.streams, rng)
                # The server refuses infinite values and negative variances.
                most = torch.finfo(honest.dtype).max
                least = 0.0 if name.endswith("running_var") else -most
                sent[name] = false.clamp(least, most).to(honest.dtype)
        return sent

    def _falsified(
        self, name: str, honest: Tensor, streams: Streams, rng: np.random.Generator
    ) -> Tensor:
        """Returns the false value for `honest` (..., d). A row of zeros has no content, such as the
        row of a class that the client lacks: it stays, and does not count in the size."""
        if self.kind == "sign_flip":
            return -self.scale * honest
        content = (honest != 0).any(-1, keepdim=True).expand_as(honest)
        size = self.scale * (honest.square().sum() / content.sum().clamp_min(1)).sqrt()
        if self.kind == "gaussian":
            noise = torch.from_numpy(rng.standard_normal(tuple(honest.shape))).to(honest)
            return size * noise * content
        return honest + size * common(name, honest.shape[-1], streams).to(honest) * content

    def _changes(self, client: Client) -> dict[Modality, Change]:
        """Returns the change of the windows of each broken sensor."""
        broken = [m for m in client.card.modalities if self.modality in ("", m)]
        if self.kind == "axis_flip":
            return dict.fromkeys(broken, half_turn)
        values = {m: first_value(client.train, m) for m in broken}
        return {m: stuck_at(value) for m, value in values.items() if value is not None}


@dataclass(frozen=True)
class AttackConfig:
    """The `[attack]` table: the attackers, the kind of attack and its first round."""

    kind: Kind = "none"  # kind of attack: on messages (gaussian, sign_flip, shift, replay), on
    # labels (label_flip), or on sensors (stuck_sensor, axis_flip)
    count: int = 0  # number of attackers, drawn by seed; a larger count adds to those of a smaller
    clients: tuple[int, ...] = ()  # ids of the attackers, instead of a count
    scale: float = 0.0  # strength of message attacks; 0: gaussian 10, sign_flip 5, shift 10
    start: int = 1  # the first round in which they attack
    modality: str = ""  # modality of the broken sensor (stuck_sensor, axis_flip); empty: all

    def __post_init__(self) -> None:
        self._by(())  # raises an error for impossible settings
        if self.count and self.clients:
            raise CommunisError("count and clients each define the attackers: give only one")
        if self.count < 0:
            raise CommunisError(f"count must be 0 or more, got {self.count}")

    def make(self, clients: int, streams: Streams, newcomers: Collection[int] = ()) -> Attack:
        """Returns the attack on a fleet of `clients` clients. newcomers: those of them that take
        no part in training, and so cannot attack."""
        unknown = [i for i in self.clients if not 0 <= i < clients]
        if unknown:
            raise CommunisError(
                f"[attack] clients names {unknown}, but the fleet has clients 0 to {clients - 1}"
            )
        new = [i for i in self.clients if i in newcomers]
        if new:
            raise CommunisError(
                f"[attack] clients names {new}, which are newcomers (run.newcomers) and take no "
                "part in training: name other clients"
            )
        members = clients - len(newcomers)
        number = len(set(self.clients)) or self.count
        if number and number >= members:
            raise CommunisError(
                f"[attack] {number} attackers in a fleet of {members}: at least one client must be "
                f"honest, so give at most {members - 1}"
            )
        if self.kind == "none" or not number:
            return Attack()
        if 2 * number >= members:
            log.warning(
                "%d of %d clients attack: no rule can help against half or more", number, members
            )
        order = streams.generator("attackers").permutation(clients).tolist()
        able = [i for i in order if i not in newcomers]
        return self._by(self.clients or tuple(able[:number]))

    def _by(self, attackers: tuple[int, ...]) -> Attack:
        return Attack(self.kind, attackers, self.scale, self.start, self.modality)


def common(name: str, size: int, streams: Streams) -> Tensor:
    """Returns a (size,) direction of root mean square 1, in which all colluders shift the rows of
    the tensor `name` in every round."""
    draw = streams.generator("collusion", zlib.crc32(name.encode()), size).standard_normal(size)
    return torch.from_numpy(draw / np.sqrt(np.square(draw).mean()))


def _is_content(tensor: Tensor) -> bool:
    """Whether a tensor can be falsified unnoticed. The server checks scalars, counts and masks."""
    return tensor.is_floating_point() and tensor.ndim > 0 and bool((tensor % 1 != 0).any())


Change = Callable[[Tensor], Tensor]  # of windows (B, channels, ...)


def half_turn(x: Tensor) -> Tensor:
    """Returns the windows of a device turned by 180 degrees about its third axis: the first two of
    every three channels change sign. If the channels are not triples, only the first does."""
    signs = x.new_ones(x.shape[1])
    if len(signs) % 3 == 0:
        signs[0::3] = signs[1::3] = -1
    else:
        signs[0] = -1
    return x * _along_channels(signs, x)


def stuck_at(value: Tensor) -> Change:
    """Returns a change after which every channel constantly has its value of (channels,)."""
    return lambda x: _along_channels(value, x).expand_as(x)


def first_value(samples: Samples, modality: Modality) -> Tensor | None:
    """Returns (channels,): the first value of every channel in the first window that has the
    modality; None if no window has it."""
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
    """Samples of an attacker, changed batch by batch, so that nothing is copied."""

    samples: Samples

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def missing(self) -> Mapping[Modality, int]:
        return self.samples.missing


@dataclass(frozen=True)
class Mislabelled(_Spoiled):
    """Samples in which class y is labelled classes - 1 - y."""

    classes: int

    @cached_property
    def target(self) -> Tensor:
        return self.classes - 1 - self.samples.target

    def batch(self, indices: Tensor) -> Batch:
        batch = self.samples.batch(indices)
        return replace(batch, target=self.classes - 1 - batch.target)


@dataclass(frozen=True)
class Missensed(_Spoiled):
    """Samples with changed sensor values; a window that lacks a modality still lacks it."""

    changes: Mapping[Modality, Change]

    @property
    def target(self) -> Tensor:
        return self.samples.target

    def batch(self, indices: Tensor) -> Batch:
        batch = self.samples.batch(indices)
        inputs = dict(batch.inputs)
        for m, change in self.changes.items():
            x = inputs[m]
            there = batch.present[m].view(-1, *(1,) * (x.ndim - 1))
            inputs[m] = torch.where(there, change(x), x)
        return replace(batch, inputs=inputs)
