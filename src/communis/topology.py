"""Who hears whom. Star: one server hears the cohort. Graph: every client aggregates what it and its
neighbours sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from communis.core import CommunisError
from communis.exchange import Topology

SERVER = -1  # the aggregator of a star, in link records


@dataclass(frozen=True)
class Star:
    def aggregators(self, clients: int) -> Sequence[int]:
        return (SERVER,)

    def aggregator_of(self, client: int) -> int:
        return SERVER

    def hears(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        return cohort


@dataclass(frozen=True)
class Graph:
    """Undirected edges between clients; every client hears itself as well."""

    edges: tuple[tuple[int, int], ...]

    @cached_property
    def _neighbours(self) -> dict[int, frozenset[int]]:
        found: dict[int, set[int]] = {}
        for a, b in self.edges:
            found.setdefault(a, set()).add(b)
            found.setdefault(b, set()).add(a)
        return {node: frozenset(near) for node, near in found.items()}

    def aggregators(self, clients: int) -> Sequence[int]:
        outside = sorted({node for edge in self.edges for node in edge if not 0 <= node < clients})
        if outside:
            raise CommunisError(
                f"the graph names clients {outside}, but the fleet has clients 0 to {clients - 1}"
            )
        return range(clients)

    def aggregator_of(self, client: int) -> int:
        return client

    def hears(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        near = self._neighbours.get(aggregator, frozenset())
        return [c for c in cohort if c == aggregator or c in near]


def complete(clients: int) -> Graph:
    return Graph(tuple((a, b) for a in range(clients) for b in range(a + 1, clients)))


def ring(clients: int) -> Graph:
    return Graph(tuple((a, (a + 1) % clients) for a in range(clients)) if clients > 1 else ())


def custom(edges: Iterable[tuple[int, int]]) -> Graph:
    return Graph(tuple((min(a, b), max(a, b)) for a, b in edges))


@dataclass(frozen=True)
class TopologyConfig:
    """Who hears whom."""

    kind: Literal["star", "complete", "ring", "edges"] = "star"
    edges: tuple[tuple[int, int], ...] = ()  # pairs of clients, with kind = "edges"

    def make(self, clients: int) -> Topology:
        if self.kind == "star":
            return Star()
        if self.kind == "edges":
            return custom(self.edges)
        return ring(clients) if self.kind == "ring" else complete(clients)
