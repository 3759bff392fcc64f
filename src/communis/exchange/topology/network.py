"""The star and the graph of one round: who sends to whom, and who is heard."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from typing import Any, ClassVar

import numpy as np

from communis.core.contract import SERVER
from communis.core.errors import CommunisError
from communis.core.streams import Streams

NEIGHBOURS = -2  # the receiver of a broadcast, in link records
UNSEEDED = Streams()  # where nothing is drawn

Edges = tuple[tuple[int, int], ...]  # pairs of clients, in either order


@dataclass(frozen=True)
class Star:
    loss: float = 0.0  # probability that the server does not hear a client in a round
    streams: Streams = UNSEEDED  # of the losses
    round: int = 0  # whose losses they are
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
    """Undirected edges between clients; every client hears itself as well. Self-loops and repeated
    edges do not count."""

    edges: Edges
    broadcast: bool = False  # a message is sent once for all neighbours instead of once for each
    loss: float = 0.0  # probability that a message is lost on its way to one neighbour
    streams: Streams = UNSEEDED  # of the losses
    round: int = 0  # whose losses they are

    @cached_property
    def _near(self) -> dict[int, list[int]]:
        found: dict[int, set[int]] = defaultdict(set)
        for a, b in self.edges:
            if a != b:
                found[a].add(b)
                found[b].add(a)
        return {node: sorted(near) for node, near in sorted(found.items())}

    @cached_property
    def _heard(self) -> dict[int, list[int]]:
        """The neighbours whose message arrives: drawn for all, whoever takes part."""
        if not self.loss:
            return self._near
        draw = self.streams.generator("loss", self.round).random
        return {
            node: list(compress(near, (draw(len(near)) >= self.loss).tolist()))
            for node, near in self._near.items()
        }

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
        return _among(cohort, [*self._near.get(aggregator, ()), aggregator])

    def hears(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        return _among(cohort, [*self._heard.get(aggregator, ()), aggregator])

    def describe(self, clients: int) -> dict[str, Any]:
        return {
            "kind": "graph",
            "edges": [[a, b] for a, near in self._near.items() for b in near if a < b],
            "changes": False,
            "loss": self.loss,
            "link": "broadcast" if self.broadcast else "unicast",
            "parts": self.parts(clients),
        }

    def parts(self, clients: int) -> list[list[int]]:
        """The clients of each connected part; an isolated one is a part of its own."""
        from scipy.sparse import coo_array  # 20 MB in every process: only where there is a graph
        from scipy.sparse.csgraph import connected_components

        ends = np.array(self.edges, np.int64).reshape(-1, 2).T
        links = coo_array((np.ones(ends.shape[1]), tuple(ends)), shape=(clients, clients))
        count, label = connected_components(links, directed=False)
        order, last = np.argsort(label, kind="stable"), np.cumsum(np.bincount(label))
        found = sorted(part.tolist() for part in np.split(order, last[:-1]))
        return found if count else []


@dataclass(frozen=True)
class Apart(Graph):
    """Every client hears itself alone: where a method exchanges nothing. It is no graph that fell
    apart, so nothing is drawn or warned of."""

    edges: Edges = ()

    def describe(self, clients: int) -> dict[str, Any]:
        return super().describe(clients) | {"kind": "apart", "parts": []}


def _among(cohort: Sequence[int], clients: list[int]) -> list[int]:
    """Those of the clients that are in the cohort, which is in client order. In a large fleet with
    few neighbours each, searching is quicker than going through everybody."""
    places = [(bisect_left(cohort, c), c) for c in sorted(clients)]
    return [c for place, c in places if place < len(cohort) and cohort[place] == c]
