"""What aggregators make of what they heard, and how far apart they are."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from communis import wire
from communis.backends.machine import one_thread
from communis.core import Card, CommunisError
from communis.exchange import Topology
from communis.fleet import AnyMethod
from communis.replies import Replies, Rule
from communis.topology import Star

Heard = Mapping[int, Sequence[int]]  # by aggregator: the clients whose messages it has


@dataclass(frozen=True)
class Aggregation:
    """The server side of a method: one state per aggregator."""

    method: AnyMethod
    cards: Sequence[Card]
    liars: frozenset[int] = frozenset()
    rule: Rule | None = None  # what stands in for means

    def downs(
        self, of: Mapping[int, Any], cards: Mapping[int, Card], after: bool = False
    ) -> dict[int, wire.Message]:
        """The downlink of every client from the state of its aggregator, before training or after
        the exchange; one that consists of the same tensors is encoded once."""
        known: dict[tuple[Any, ...], tuple[wire.Message, dict[str, Tensor]]] = {}
        messages, down = {}, self.method.back if after else self.method.down
        for i, server in of.items():
            flat = wire.flatten(down(server, cards[i]))
            key = tuple((name, wire.identity(t)) for name, t in flat.items())
            if key not in known:
                known[key] = wire.encode(flat), flat  # alive, so that no other tensor gets its id
            messages[i] = known[key][0]
        return messages

    def all(
        self, servers: Mapping[int, Any], heard: Heard, received: Mapping[int, Any]
    ) -> tuple[dict[int, Any], list[tuple[int, str]]]:
        """The new state of every aggregator, and which of them came out unusable. One that heard
        nobody keeps its state; so do all if any is not finite, or it would be so for good."""
        made = dict(servers)
        with one_thread():
            for aggregator, clients in heard.items():
                if clients:
                    made[aggregator] = self._one(servers[aggregator], clients, received)
        broken = [
            (aggregator, f"the aggregate is not finite in {key}: the round was dropped")
            for aggregator, server in made.items()
            for key in wire.not_finite(server)
        ]
        return (dict(servers), broken[:1]) if broken else (made, [])

    def moved(
        self,
        servers: Mapping[int, Any],
        made: Mapping[int, Any],
        heard: Heard,
        received: Mapping[int, Any],
        lying: Collection[int],
    ) -> float:
        """How far liars moved the aggregates in this round: the distance from what the honest alone
        would have made of the same state, as a share of the latter's length; mean over the honest
        aggregators that heard any of both, NaN if there are none."""
        found = []
        for aggregator, clients in heard.items():
            honest = [i for i in clients if i not in lying]
            if aggregator not in lying and honest and len(honest) < len(clients):
                with one_thread():
                    without = self._one(servers[aggregator], honest, received)
                alone, together = _contents([without, made[aggregator]])
                apart = {key: together[key] - value for key, value in alone.items()}
                found += [_norm(apart) / max(_norm(alone), 1e-30)] if alone else []
        return sum(found) / len(found) if found else math.nan

    def pooled(self, topology: Topology) -> Topology:
        """Where data are pooled there is a server and nobody who could lie to it; and nothing
        travels that could be lost."""
        if self.liars or not isinstance(topology, Star):
            why = "nobody could lie to it" if self.liars else "it needs a star"
            raise CommunisError(f"{type(self.method).__name__} pools data at a server: {why}")
        return Star()

    def _one(self, server: Any, clients: Sequence[int], received: Mapping[int, Any]) -> Any:
        replies = Replies([(self.cards[i], received[i]) for i in clients], self.rule)
        return self.method.aggregate(server, replies)


def consensus_distance(servers: Mapping[int, Any]) -> float:
    """The root mean square distance of aggregates from their mean; NaN for a single one, and where
    they have nothing in common."""
    states = _contents(list(servers.values())) if len(servers) > 1 else [{}]
    if not states[0]:
        return math.nan
    mean = {key: reduce(torch.add, [s[key] for s in states]) / len(states) for key in states[0]}
    squares = [_norm({key: s[key] - mean[key] for key in mean}) ** 2 for s in states]
    return math.sqrt(sum(squares) / len(squares))


def _contents(servers: Sequence[Any]) -> list[dict[str, Tensor]]:
    """What can be compared in these states, in full precision: numbers with a fraction, as whole
    ones are counts and ages. Nothing where lists of clients differ: rows are then of others."""
    flat = [wire.flatten(server) for server in servers]
    shared = sorted(k for k, t in flat[0].items() if all(_alike(t, f.get(k)) for f in flat[1:]))
    lists = [k for k in shared if flat[0][k].dtype is torch.int64 and flat[0][k].ndim == 1]
    found: list[dict[str, Tensor]] = [{} for _ in flat]
    if any(not torch.equal(f[k], flat[0][k]) for f in flat[1:] for k in lists):
        return found
    for key in (k for k in shared if flat[0][k].is_floating_point()):
        values = _told([f[key].double() for f in flat], rows="/" not in key)
        if any(bool((v != v.round()).any()) for v in values):
            for own, value in zip(found, values, strict=True):
                own[key] = value
    return found


def _told(values: Sequence[Tensor], rows: bool) -> list[Tensor]:
    """If they have rows, those that are zero in none of them: a class that nobody has told of yet
    is no point in space."""
    if not rows or values[0].ndim < 2:
        return list(values)
    flat = [value.reshape(-1, value.shape[-1]) for value in values]
    known = reduce(torch.logical_and, [(value != 0).any(-1) for value in flat])
    return [value[known] for value in flat]


def _alike(one: Tensor, other: Tensor | None) -> bool:
    return other is not None and one.shape == other.shape


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(float(t.square().sum()) for t in tensors.values()))
