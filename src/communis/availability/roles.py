"""Fixed role lists: so many clients with these sensors, so many with those; who plays which role is
drawn by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from communis.core import CommunisError, Modality
from communis.streams import Streams


@dataclass(frozen=True)
class Role:
    modalities: tuple[Modality, ...]
    count: int


def assign(
    roles: Sequence[Role], clients: int, modalities: Sequence[Modality], streams: Streams
) -> list[tuple[Modality, ...]]:
    """The sorted modalities of every client; without roles everybody has all."""
    if not roles:
        return [tuple(sorted(modalities))] * clients
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
    suites = [tuple(sorted(role.modalities)) for role in roles for _ in range(role.count)]
    return [suites[i] for i in streams.generator("roles").permutation(clients)]
