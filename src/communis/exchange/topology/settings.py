"""The `[topology]` table, and graphs that change with the round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal, get_args

from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.exchange.topology.network import UNSEEDED, Edges, Graph, Star
from communis.exchange.topology.shapes import complete, custom, erdos_renyi, hub, regular, ring

if TYPE_CHECKING:
    from communis.exchange.messages import Topology

Kind = Literal["star", "complete", "ring", "regular", "erdos_renyi", "hub", "edges"]
DRAWN = ("regular", "erdos_renyi")
OWNERS: dict[str, tuple[str, ...]] = {  # the kinds that a setting applies to, if not to all
    "edges": ("edges",),
    "schedule": ("edges",),
    "degree": ("regular",),
    "probability": ("erdos_renyi",),
    "hub": ("hub",),
    "redraw": DRAWN,
    "link": tuple(kind for kind in get_args(Kind) if kind != "star"),
}


@dataclass(frozen=True)
class TopologyConfig:
    """The topology: which messages an aggregator receives."""

    kind: Kind = "star"
    edges: Edges = ()  # kind = "edges": pairs of clients
    schedule: tuple[Edges, ...] = ()  # kind = "edges": instead, the edges of each round, repeated
    degree: int = 0  # kind = "regular": number of neighbours of every client
    probability: float = 0.0  # kind = "erdos_renyi": probability of every edge
    hub: int = 0  # kind = "hub": the client in the middle
    redraw: int = 0  # drawn kinds: rounds after which a new graph is drawn; 0: never
    loss: float = 0.0  # probability that a message is lost, per round and directed link
    link: Literal["unicast", "broadcast"] = (
        "unicast"  # a message is sent to each neighbour, or once to all
    )
    connected: bool = True  # refuse a disconnected graph

    def __post_init__(self) -> None:
        for name, known in (("kind", get_args(Kind)), ("link", ("unicast", "broadcast"))):
            given = getattr(self, name)
            if given not in known:
                raise CommunisError(f"no {name} {given!r}; there are {', '.join(known)}")
        for setting in fields(self):
            owners = OWNERS.get(setting.name, (self.kind,))
            if getattr(self, setting.name) != setting.default and self.kind not in owners:
                raise CommunisError(
                    f"{setting.name} has no meaning with kind = {self.kind!r}; "
                    f"it applies to {', '.join(owners)}"
                )
        if self.edges and self.schedule:
            raise CommunisError("give edges (one graph) or schedule (one per round), not both")
        if self.kind == "regular" and self.degree < 1:
            raise CommunisError(f"kind = 'regular' needs a degree of at least 1, got {self.degree}")
        if self.kind == "erdos_renyi" and not 0 < self.probability <= 1:
            raise CommunisError(
                f"kind = 'erdos_renyi' needs a probability in (0, 1], got {self.probability}"
            )
        if self.redraw < 0:
            raise CommunisError(f"redraw must be at least 0, got {self.redraw}")
        if not 0 <= self.loss <= 1:
            raise CommunisError(f"loss is a probability in [0, 1], got {self.loss}")

    def make(self, clients: int, streams: Streams = UNSEEDED) -> Topology:
        if self.kind == "star":
            return Star(self.loss, streams) if self.loss else Star()
        first = self.graph(clients, streams)
        changes = bool(self.redraw or self.schedule)
        topology = Changing(self, clients, streams) if changes else first
        topology.aggregators(clients)  # refuses edges to clients that do not exist
        if self.connected:
            parts = topology.parts(clients)
            if len(parts) > 1:
                raise CommunisError(_disconnected(parts, changes))
        return topology

    def graph(self, clients: int, streams: Streams, round: int = 1) -> Graph:
        """The graph of a round; rounds begin with 1."""
        rounds_before = max(round - 1, 0)
        if self.kind in DRAWN:
            number = rounds_before // self.redraw if self.redraw else 0
            graph = _drawn(self, clients, streams, number)
        elif self.kind == "edges":
            schedule = self.schedule or (self.edges,)
            graph = custom(schedule[rounds_before % len(schedule)])
        elif self.kind == "hub":
            graph = hub(clients, self.hub)
        elif self.kind == "ring":
            graph = ring(clients)
        else:
            graph = complete(clients)
        graph = replace(graph, broadcast=self.link == "broadcast")
        return replace(graph, loss=self.loss, streams=streams) if self.loss else graph


@dataclass(frozen=True)
class Changing:
    """A graph that follows a schedule, or that is drawn again after some rounds. Methods without a
    round use the first one."""

    settings: TopologyConfig
    clients: int
    streams: Streams

    @property
    def broadcast(self) -> bool:
        return self.settings.link == "broadcast"

    def at(self, round: int) -> Graph:
        return self.settings.graph(self.clients, self.streams, round).at(round)

    @cached_property
    def _union(self) -> Graph:
        """The union of the graphs of all rounds: the edges of a schedule. If graphs are drawn, any
        two clients may become neighbours, so all clients are connected."""
        if self.settings.redraw:
            return ring(self.clients)
        return custom(edge for edges in self.settings.schedule for edge in edges)

    def parts(self, clients: int) -> list[list[int]]:
        return self._union.parts(clients)

    def aggregators(self, clients: int) -> Sequence[int]:
        return self._union.aggregators(clients)

    def aggregator_of(self, client: int) -> int:
        return client

    def reaches(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        return self.at(1).reaches(aggregator, cohort)

    def hears(self, aggregator: int, cohort: Sequence[int]) -> Sequence[int]:
        return self.at(1).hears(aggregator, cohort)

    def describe(self, clients: int) -> dict[str, Any]:
        return self.at(1).describe(clients) | {"changes": True, "parts": self.parts(clients)}


@lru_cache(maxsize=4)
def _drawn(settings: TopologyConfig, clients: int, streams: Streams, number: int) -> Graph:
    """The drawn graph of this number. It is cached: drawing takes long, and rounds share it."""
    draw = streams.generator("graph", number)
    if settings.kind == "regular":
        return regular(clients, settings.degree, settings.connected, draw)
    return erdos_renyi(clients, settings.probability, settings.connected, draw, later=number > 0)


def _disconnected(parts: Sequence[Sequence[int]], changes: bool) -> str:
    joined = [f"[{_listed(part)}]" for part in parts if len(part) > 1]
    alone = [part[0] for part in parts if len(part) == 1]
    components = []
    if joined:
        components.append(f"parts {_listed(joined)}")
    if alone:
        components.append(f"isolated clients {_listed(alone)}")
    subject = "the schedule as a whole" if changes else "the graph"
    return (
        f"[topology] {subject} falls into {' and '.join(components)}: "
        "add edges that join them, or permit it with connected = false"
    )


def _listed(items: Sequence[object], most: int = 10) -> str:
    text = ", ".join(map(str, items[:most]))
    return f"{text} and {len(items) - most} more" if len(items) > most else text
