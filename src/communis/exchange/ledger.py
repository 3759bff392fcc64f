"""The byte ledger of one round: all messages, by link and direction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from communis.core.contract import SERVER
from communis.exchange.messages import Link, Topology
from communis.exchange.topology import NEIGHBOURS
from communis.exchange.wire import Message


class Ledger:
    """Records the links of one round. In a star, messages pass between clients and SERVER. In a
    graph, an uplink goes to every neighbour, as one link each or as a broadcast, which is one link
    to NEIGHBOURS; a downlink stays on its node and costs nothing. A lost message costs as much as
    one that arrives."""

    def __init__(self, topology: Topology, awake: Sequence[int], cohort: Sequence[int]) -> None:
        """`awake` holds the aggregators that can be reached."""
        self.links: list[Link] = []
        self._topology = topology
        self._beside = -1  # the client on the same machine as the server, which needs no link
        self._hearers: dict[int, list[int]] = defaultdict(list)
        for aggregator in awake:
            for client in topology.reaches(aggregator, cohort):
                if client != aggregator:
                    self._hearers[client].append(aggregator)

    def down(self, client: int, message: Message) -> None:
        sender = self._topology.aggregator_of(client)
        if client not in (sender, self._beside):
            self.links.append(Link(sender, client, message.payload, message.framing))

    def up(self, client: int, message: Message) -> None:
        receivers = self._hearers[client] if client != self._beside else []
        if receivers and self._topology.broadcast:
            receivers = [NEIGHBOURS]
        self.links += [Link(client, to, message.payload, message.framing) for to in receivers]

    def pool(self, pool: int, raw_bytes: Mapping[int, int]) -> None:
        """Records centralised training: the pooled client is on the machine of the server, and the
        other clients send it their raw windows."""
        self._beside = pool
        self.links += [Link(client, SERVER, count, 0) for client, count in raw_bytes.items()]

    def received(self) -> Mapping[int, int]:
        """The bytes sent to each client or SERVER; a broadcast counts for every neighbour."""
        total: dict[int, int] = defaultdict(int)
        for link in self.links:
            broadcast = link.receiver == NEIGHBOURS
            receivers = self._hearers[link.sender] if broadcast else [link.receiver]
            for receiver in receivers:
                total[receiver] += link.payload + link.framing
        return total

    def sent(self) -> Mapping[int, int]:
        """The bytes sent by each client or SERVER."""
        total: dict[int, int] = defaultdict(int)
        for link in self.links:
            total[link.sender] += link.payload + link.framing
        return total

    @property
    def bytes_down(self) -> int:
        return sum(link.payload for link in self.links if link.sender == SERVER)

    @property
    def bytes_up(self) -> int:
        return sum(link.payload for link in self.links if link.sender != SERVER)

    @property
    def bytes_framing(self) -> int:
        return sum(link.framing for link in self.links)
