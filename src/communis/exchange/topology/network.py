"""The star and the graph of one round: who sends to whom, and which messages arrive."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar

import numpy as np

from communis.core.errors import CommunisError
from communis.core.names import SERVER
from communis.core.streams import Streams

NEIGHBOURS = -2  # the receiver of a broadcast, in link records
UNSEEDED = Streams()  # for topologies that draw nothing

Edges = tuple[tuple[int, int], ...]  # pairs of clients, in either order


@dataclass(frozen=True)
class Star:
    """One server aggregates the messages of the cohort."""

    loss: float = 0.0  # probability that the message of a client is lost in a round
    streams: Streams = UNSEEDED  # of the losses
    round: int = 0  # the round of the losses
    broadcast: ClassVar[bool] = False

    def at(self, round: int) -> Star:
        return replace(self, round=round) if self.loss else self

    def aggregators(self, clients: int) -> Sequence[int]:
        return (SERVER,)

    def aggregator_of(self, client: int) -> int:
        return SERVER

    def reaches(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        return cohort

    def hears(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        if not self.loss or not cohort:
            return cohort
        chances = self.streams.generator("loss", self.round).random(max(cohort) + 1)
        return [c for c in cohort if chances[c] >= self.loss]

    def describe(self, clients: int) -> dict[str, Any]:
        return {
            "kind": "star",
            "edges": [],
            "changes": False,
            "loss": self.loss,
            "link": "unicast",
            "parts": [list(range(clients))],
        }


@dataclass(frozen=True)
class Graph:
    """Undirected edges between clients. Every client aggregates the messages of its neighbours and
    its own. Self-loops and repeated edges have no effect."""

    edges: Edges
    broadcast: bool = False  # a message is sent once for all neighbours instead of once for each
    loss: float = 0.0  # probability that a message is lost on its way to one neighbour
    streams: Streams = UNSEEDED  # of the losses
    round: int = 0  # the round of the losses

    @cached_property
    def _neighbours(self) -> dict[int, list[int]]:
        neighbours: dict[int, set[int]] = defaultdict(set)
        for a, b in self.edges:
            if a != b:
                neighbours[a].add(b)
                neighbours[b].add(a)
        return {node: sorted(near) for node, near in sorted(neighbours.items())}

    @cached_property
    def _heard(self) -> dict[int, list[int]]:
        """The neighbours of each node whose messages arrive. Losses are drawn for all links,
        whichever clients participate."""
        if not self.loss:
            return self._neighbours
        draw = self.streams.generator("loss", self.round).random
        heard = {}
        for node, neighbours in self._neighbours.items():
            arrives = draw(len(neighbours)) >= self.loss
            heard[node] = list(compress(neighbours, arrives.tolist()))
        return heard

    def at(self, round: int) -> Graph:
        return replace(self, round=round) if self.loss else self

    def aggregators(self, clients: int) -> Sequence[int]:
        outside = sorted({node for edge in self.edges for node in edge if not 0 <= node < clients})
        if outside:
            raise CommunisError(
                f"the graph names clients {outside}, but the fleet has clients 0 to {clients - 1}: "
                "see edges, schedule and hub in [topology]"
            )
        return range(clients)

    def aggregator_of(self, client: int) -> int:
        return client

    def reaches(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        return _among(cohort, [*self._neighbours.get(aggregator, ()), aggregator])

    def hears(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        return _among(cohort, [*self._heard.get(aggregator, ()), aggregator])

    def describe(self, clients: int) -> dict[str, Any]:
        return {
            "kind": "graph",
            "edges": [[a, b] for a, near in self._neighbours.items() for b in near if a < b],
            "changes": False,
            "loss": self.loss,
            "link": "broadcast" if self.broadcast else "unicast",
            "parts": self.parts(clients),
        }

    def parts(self, clients: int) -> list[list[int]]:
        """The clients of each connected component; an isolated client is a component by itself."""
        # Imported here because scipy.sparse takes 20 MB in every process, and only graphs need it.
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        ends = np.array(self.edges, np.int64).reshape(-1, 2).T
        links = coo_array((np.ones(ends.shape[1]), tuple(ends)), shape=(clients, clients))
        count, label = connected_components(links, directed=False)
        if not count:
            return []
        order = np.argsort(label, kind="stable")
        ends_of_parts = np.cumsum(np.bincount(label))[:-1]
        return sorted(part.tolist() for part in np.split(order, ends_of_parts))


@dataclass(frozen=True)
class Apart(Graph):
    """Every client aggregates its own message only, for methods that exchange nothing. It is not a
    disconnected graph: reports neither draw it nor warn of it."""

    edges: Edges = ()

    def describe(self, clients: int) -> dict[str, Any]:
        return super().describe(clients) | {"kind": "apart", "parts": []}


def _among(cohort: Sequence[int], clients: list[int]) -> list[int]:
    """The clients that are in the cohort, which is sorted. In a large fleet with few neighbours per
    client, bisection is faster than a pass over the cohort."""
    places = [(bisect_left(cohort, c), c) for c in sorted(clients)]
    return [c for place, c in places if place < len(cohort) and cohort[place] == c]
