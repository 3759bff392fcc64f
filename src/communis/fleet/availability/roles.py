"""Fixed role lists: so many clients with these sensors, so many with those; who plays which role is
drawn by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.data.recordings.shares import apportioned
from communis.fleet.availability.nonempty import some_of


@dataclass(frozen=True)
class Role:
    """One entry of `[[fleet.roles]]`: what some clients have in common."""

    modalities: tuple[Modality, ...]
    count: int
    device: str = ""  # name of a device profile
    model: str = ""  # architecture; empty: as the rest of the fleet
    detail: Literal["coarse", "dense"] = "dense"  # coarse: averaged or thinned out
    drop: float = 0.0  # probability that a window lacks a stream; never all of them

    def __post_init__(self) -> None:
        if len(set(self.modalities)) != len(self.modalities):
            raise CommunisError(f"modalities {list(self.modalities)}: one is named twice")
        if self.count < 0:
            raise CommunisError(f"count must be at least 0, got {self.count}")
        if self.detail not in ("coarse", "dense"):
            raise CommunisError(f"detail must be coarse or dense, got {self.detail!r}")
        if not 0 <= self.drop < 1:
            raise CommunisError(f"drop is a probability below 1, got {self.drop}")

    @property
    def suite(self) -> tuple[Modality, ...]:
        return tuple(sorted(self.modalities))


def cast(
    roles: Sequence[Role], clients: int, modalities: Sequence[Modality], streams: Streams
) -> list[Role]:
    """The role of every client."""
    for role in roles:
        unknown = [m for m in role.modalities if m not in modalities]
        if unknown or not role.modalities:
            raise CommunisError(
                f"role with modalities {list(role.modalities)}: the data has {sorted(modalities)}"
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
    """UMEDA's types as roles: A has one modality, coarse; B has one, dense; C has all of them, and
    its windows lack each stream with probability `drop`.

    Counts follow `mix` by largest remainder. Single modalities are dealt in turn, first to A and
    then on to B.
    """
    names = sorted(modalities)
    if min(mix) < 0 or not 0 < sum(mix) < math.inf:
        raise CommunisError(f"shares must be at least 0, got {list(mix)}")
    coarse, dense, mixed = apportioned(mix, clients).tolist()
    turn = np.arange(coarse + dense) % len(names)
    counts = {
        "coarse": np.bincount(turn[:coarse], minlength=len(names)),
        "dense": np.bincount(turn[coarse:], minlength=len(names)),
    }
    roles = [
        *(
            Role((m,), int(n), detail="coarse")
            for m, n in zip(names, counts["coarse"], strict=True)
        ),
        *(Role((m,), int(n)) for m, n in zip(names, counts["dense"], strict=True)),
        Role(tuple(names), mixed, drop=drop),
    ]
    return tuple(role for role in roles if role.count)


def drop_streams(present: Array, drop: float, rng: np.random.Generator) -> Array:
    """(n, M) bool: what is left of `present` when each stream of each window is dropped with
    probability `drop`, but never the last one."""
    return some_of(present, np.full(len(present), 1 - drop), rng)
