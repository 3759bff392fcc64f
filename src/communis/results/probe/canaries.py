"""Canaries: clients whose messages hold nothing but the result of a coin toss, as large as clipping
lets through."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from communis.core.arrays import Array
from communis.core.contract import Client
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.data.recordings.windows import TRAIN
from communis.exchange import wire
from communis.exchange.privacy.guard import received
from communis.fleet.attack import Attack
from communis.fleet.fleet import AnyMethod, Fleet

LOUD = 10.0  # a canary's message is so many times as long as C: one that is not clipped shows


@dataclass(frozen=True)
class Canaries:
    """The clients from number `first` on, and what they send: heads is a direction of their own,
    tails the opposite one or, if not `signed`, no change."""

    first: int
    count: int
    streams: Streams
    signed: bool = True
    clip: float = 1.0  # C
    clips: Mapping[str, float] | None = None  # of single fields of the message

    @property
    def coins(self) -> Array:
        """(count,) +1 or -1."""
        return np.array([self.coin(self.first + k) for k in range(self.count)])

    def has(self, client: int) -> bool:
        return self.first <= client < self.first + self.count

    def coin(self, client: int) -> int:
        return int(self.streams.generator("coin", client).choice([-1, 1]))

    def message(
        self, client: int, up: Mapping[str, Tensor], down: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """What a canary sends instead of `up`."""
        coin = self.coin(client)
        sent = dict(up)
        for key, v in self._direction(client, up).items():
            change = v * (LOUD * (coin if self.signed else max(0, coin)))
            reference = received(key, up[key], down)
            sent[key] = change if reference is None else reference + change
        return sent

    def echo(self, client: int, change: Mapping[str, Tensor]) -> float:
        """How much of its direction is in a change, every field counting alike: what the coin
        stands for, if the change was clipped to C and nothing else."""
        shares: dict[str, float] = {}
        for key, v in self._direction(client, change).items():
            name = _field(key)
            share = float((change[key].double() * v).sum()) / self._bound(name) ** 2
            shares[name] = shares.get(name, 0.0) + share
        return sum(shares.values()) / len(shares)

    def _direction(self, client: int, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The direction of a canary: the same in all rounds, whatever other fields there are, and
        as long as C in each field."""
        direction: dict[str, Tensor] = {}
        for name in sorted({_field(key) for key in like}):
            draw = self.streams.generator(f"canary {name}", client)
            drawn = {
                key: torch.from_numpy(draw.standard_normal(tuple(t.shape), np.float32))
                for key, t in sorted(like.items())
                if _field(key) == name and t.is_floating_point()
            }
            length = math.hypot(*(float(t.norm()) for t in drawn.values()))
            for key, tensor in drawn.items():
                direction[key] = tensor * (self._bound(name) / length)
        return direction

    def _bound(self, name: str) -> float:
        return (self.clips or {}).get(name, self.clip)


def planted(fleet: Fleet, canaries: int) -> Fleet:
    """The fleet with so many more clients, each of which takes over a training window of another
    client and has the same sensors and model. No client attacks and no sensor fails."""
    windows, owner = fleet.windows, fleet.clients_of.copy()
    whole = np.all([np.ones(len(owner), bool), *windows.present.values()], axis=0)
    rows = np.flatnonzero((windows.split == TRAIN) & (owner >= 0) & whole)
    if not 1 <= canaries <= len(rows) // 2:
        raise CommunisError(
            f"{canaries} canaries: each takes over a training window that all sensors saw, and at "
            f"least half of these stay with their clients; expected 1 to {len(rows) // 2}"
        )
    rows = rows[np.linspace(0, len(rows) - 1, canaries).astype(int)]
    hosts, clients = owner[rows], len(fleet)
    owner[rows] = clients + np.arange(canaries)
    per_client = [name for name in ("suites", "coarse", "devices") if len(getattr(fleet, name))]
    per_client += ["models"] if len(fleet.models) > 1 else []
    more: dict[str, Any] = {}
    for name in per_client:
        known: Sequence[Any] = getattr(fleet, name)
        more[name] = [*known, *(known[i] for i in hosts)]
    return replace(fleet, client_of=owner, outages=None, attack=Attack(), **more)


def singing(method: AnyMethod, canaries: Canaries) -> AnyMethod:
    """The same method but for what canaries send. They train like others, which gives their message
    its form. It exists in this process only."""
    kind = type(method)

    def local(self: AnyMethod, client: Client, state: Any, down: Any) -> tuple[Any, Any]:
        state, up = kind.local(self, client, state, down)
        if canaries.has(client.card.id):
            sent = canaries.message(client.card.id, wire.flatten(up), wire.flatten(down))
            up = wire.unflatten(sent, type(up))
        return state, up

    made: AnyMethod = type(kind.__name__, (kind,), {"local": local})(**vars(method))
    return made


def _field(key: str) -> str:
    return key.partition("/")[0]
