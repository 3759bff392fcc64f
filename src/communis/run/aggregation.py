"""Aggregation of the messages of a round, and the distances between aggregates."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from communis.core.contract import AfterExchange, Card
from communis.core.errors import CommunisError
from communis.core.replies import Rule
from communis.exchange import wire
from communis.exchange.messages import Topology
from communis.exchange.privacy.protection import Protection
from communis.exchange.topology import Star
from communis.fleet.fleet import AnyMethod

Heard = Mapping[int, Sequence[int]]  # by aggregator: the clients whose messages it has


@dataclass(frozen=True)
class Aggregation:
    """The server side of a method: one state per aggregator."""

    method: AnyMethod
    privacy: Protection
    liars: frozenset[int] = frozenset()
    rule: Rule | None = None  # what stands in for means

    def downs(
        self, of: Mapping[int, Any], cards: Mapping[int, Card], after: bool = False
    ) -> dict[int, wire.Message]:
        """The downlink of every client from the state of its aggregator, before training or after
        the exchange; one that consists of the same tensors is encoded once."""
        known: dict[tuple[Any, ...], tuple[wire.Message, dict[str, Tensor]]] = {}
        messages, down = {}, self.method.down
        if after and isinstance(self.method, AfterExchange):
            down = self.method.down_after
        for i, server in of.items():
            flat = wire.flatten(down(server, cards[i]))
            key = tuple((name, wire.identity(t)) for name, t in flat.items())
            if key not in known:
                known[key] = wire.encode(flat), flat  # alive, so that no other tensor gets its id
            messages[i] = known[key][0]
        return messages

    def all(
        self,
        servers: Mapping[int, Any],
        heard: Heard,
        received: Mapping[int, wire.Received],
        round: int,
    ) -> tuple[dict[int, Any], list[tuple[int, str]]]:
        """The new state of every aggregator, and which of them came out unusable. One that heard
        nobody keeps its state, unless noise must hide that; so do all if any is not finite, or it
        would be so for good."""
        made, hides = dict(servers), self.privacy.central is not None
        for aggregator, clients in heard.items():
            if clients or hides:
                made[aggregator] = self._one(servers[aggregator], clients, received, round)
        broken = [
            (aggregator, f"the aggregate {key} {wire.NOT_FINITE}: the round was dropped")
            for aggregator, server in made.items()
            for key in wire.not_finite(wire.flatten(server))
        ]
        return (dict(servers), broken[:1]) if broken else (made, [])

    def moved(
        self,
        servers: Mapping[int, Any],
        made: Mapping[int, Any],
        heard: Heard,
        received: Mapping[int, wire.Received],
        lying: Collection[int],
        round: int,
    ) -> float:
        """Returns how far attackers moved the aggregates of this round: the distance from the
        aggregate of the honest clients alone, relative to the length of that aggregate; the mean
        over honest aggregators that received messages of both, NaN if there are none."""
        shares = []
        for aggregator, clients in heard.items():
            honest = [i for i in clients if i not in lying]
            if aggregator not in lying and honest and len(honest) < len(clients):
                without = self._one(servers[aggregator], honest, received, round)
                alone, together = map(self.method.common, (without, made[aggregator]))
                shared = sorted(key for key in alone if key in together)
                apart = _length([together[key].double() - alone[key] for key in shared])
                length = _length([alone[key].double() for key in shared])
                shares += [apart / max(length, 1e-30)] if shared else []
        return sum(shares) / len(shares) if shares else math.nan

    def consensus_distance(self, servers: Mapping[int, Any]) -> float:
        """The root mean square distance of aggregates from their mean, key by key among those that
        have it; NaN where no two have anything in common."""
        held: dict[str, list[Tensor]] = {}
        for server in servers.values():
            for key, value in self.method.common(server).items():
                held.setdefault(key, []).append(value.double())
        shared = [torch.stack(held[key]) for key in sorted(held) if len(held[key]) > 1]
        squares = [float((values - values.mean(0)).square().sum()) for values in shared]
        return math.sqrt(sum(squares) / len(servers)) if shared else math.nan

    def pooled(self, topology: Topology) -> Topology:
        """Returns the topology of a method that pools data: a star. Refuses attackers and graphs,
        because nothing is sent."""
        if self.liars or not isinstance(topology, Star):
            lies = "nobody could lie to it; leave it out, or [attack]"
            why = lies if self.liars else "it needs a star"
            raise CommunisError(f"{type(self.method).__name__} pools data at a server: {why}")
        return Star()

    def _one(
        self, server: Any, clients: Sequence[int], received: Mapping[int, wire.Received], round: int
    ) -> Any:
        sent = [(self.privacy.cards[i], received[i]) for i in clients]
        return self.method.aggregate(server, self.privacy.replies(server, sent, self.rule, round))


def _length(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(t.square().sum()) for t in tensors))
