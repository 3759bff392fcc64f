"""Roles: fixed numbers of clients with given sensors. The role of each client is drawn by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.names import Modality
from communis.core.streams import Streams
from communis.data.recordings.shares import apportioned
from communis.fleet.availability.nonempty import nonempty_subset


@dataclass(frozen=True)
class Role:
    """One entry of `[[fleet.roles]]`: the sensors, device and model of a group of clients."""

    modalities: tuple[Modality, ...]  # sensors of these clients
    count: int  # number of these clients
    device: str = ""  # name of a device profile
    model: str = ""  # architecture, or "package.module:Class"; empty: one of `fleet.models`
    detail: Literal["coarse", "dense"] = "dense"  # coarse: values are averaged or thinned out
    drop: float = 0.0  # probability that a window lacks a modality; never all of them

    def __post_init__(self) -> None:
        if len(set(self.modalities)) != len(self.modalities):
            raise CommunisError(f"modalities {list(self.modalities)}: a name occurs twice")
        if self.count < 0:
            raise CommunisError(f"count must be at least 0, got {self.count}")
        if self.detail not in ("coarse", "dense"):
            raise CommunisError(f"detail must be coarse or dense, got {self.detail!r}")
        if not 0 <= self.drop < 1:
            raise CommunisError(f"drop must be a probability below 1, got {self.drop}")

    @property
    def suite(self) -> tuple[Modality, ...]:
        return tuple(sorted(self.modalities))


def cast(
    roles: Sequence[Role], clients: int, modalities: Sequence[Modality], streams: Streams
) -> list[Role]:
    """Returns the role of every client."""
    for role in roles:
        if not role.modalities:
            raise CommunisError(
                "role with modalities []: clients need a sensor; name at least one of "
                f"{sorted(modalities)}, or leave the role out"
            )
        unknown = [m for m in role.modalities if m not in modalities]
        if unknown:
            raise CommunisError(
                f"role with modalities {list(role.modalities)}: the data have {sorted(modalities)}"
            )
    total = sum(role.count for role in roles)
    if total != clients:
        raise CommunisError(
            f"the roles are for {total} clients, but there are {clients}: "
            "change the counts in [[fleet.roles]]"
        )
    players = [role for role in roles for _ in range(role.count)]
    return [players[i] for i in streams.generator("roles").permutation(clients)]


def client_types(
    modalities: Sequence[Modality],
    clients: int,
    mix: tuple[float, float, float] = (0.4, 0.3, 0.3),
    drop: float = 0.3,
) -> tuple[Role, ...]:
    """Returns UMEDA's client types as roles: A has one modality, coarse; B has one, dense; C has
    all of them, and its windows lack each modality with probability `drop`.

    Counts follow `mix` by largest remainder. Single modalities are assigned in turn, first to A and
    then to B.
    """
    names = sorted(modalities)
    if min(mix) < 0 or not 0 < sum(mix) < math.inf:
        raise CommunisError(f"shares must be at least 0, got {list(mix)}")
    coarse, dense, mixed = apportioned(mix, clients).tolist()
    turn = np.arange(coarse + dense) % len(names)
    coarse_counts = np.bincount(turn[:coarse], minlength=len(names))
    dense_counts = np.bincount(turn[coarse:], minlength=len(names))
    roles = []
    for m, count in zip(names, coarse_counts, strict=True):
        roles.append(Role((m,), int(count), detail="coarse"))
    for m, count in zip(names, dense_counts, strict=True):
        roles.append(Role((m,), int(count)))
    roles.append(Role(tuple(names), mixed, drop=drop))
    return tuple(role for role in roles if role.count)


def drop_streams(present: Array, drop: float, rng: np.random.Generator) -> Array:
    """Returns (n, M) bool: `present` after each modality of each window is dropped with probability
    `drop`, but never the last one."""
    return nonempty_subset(present, np.full(len(present), 1 - drop), rng)
