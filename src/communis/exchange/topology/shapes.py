"""Graphs by their shape, given or drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from communis.core.errors import CommunisError
from communis.exchange.topology.network import Graph

TRIES = 100  # graphs drawn before no connected one is expected any more


def custom(edges: Iterable[tuple[int, int]]) -> Graph:
    return Graph(tuple((min(a, b), max(a, b)) for a, b in edges))


def complete(clients: int) -> Graph:
    return Graph(tuple((a, b) for a in range(clients) for b in range(a + 1, clients)))


def ring(clients: int) -> Graph:
    return Graph(tuple((a, (a + 1) % clients) for a in range(clients)) if clients > 1 else ())


def hub(clients: int, centre: int) -> Graph:
    """One of the clients is everybody's only neighbour."""
    return custom((centre, a) for a in range(clients) if a != centre)


def regular(clients: int, degree: int, connected: bool, draw: np.random.Generator) -> Graph:
    """Everybody has so many neighbours."""
    if not 0 < degree < clients or clients * degree % 2:
        raise CommunisError(
            f"[topology] degree = {degree} does not go with {clients} clients: it must be less "
            "than their number, and one of the two numbers must be even"
        )
    if connected and degree == 1 and clients > 2:
        raise CommunisError(
            f"[topology] degree = 1 makes pairs of the {clients} clients, which connected = true "
            "refuses: choose at least 2, or permit it with connected = false"
        )
    if connected and degree == 2:  # most others are several rings
        order = draw.permutation(clients).tolist()
        return custom((order[a], order[b]) for a, b in ring(clients).edges)
    nodes, half = range(clients), clients // 2
    edges = [(a, (a + step) % clients) for step in range(1, degree // 2 + 1) for a in nodes]
    edges += [(a, a + half) for a in range(half)] if degree % 2 else []
    while True:
        edges = _swapped(edges, draw)
        found = custom(edges)
        if not connected or len(found.parts(clients)) == 1:
            return found


def _swapped(edges: Iterable[tuple[int, int]], draw: np.random.Generator) -> list[tuple[int, int]]:
    """Two edges swap ends unless that makes an edge which is there already; ten times as often as
    there are edges, so that all graphs with the same degrees are about equally likely."""
    now = [(a, b) if a < b else (b, a) for a, b in edges]
    there = set(now)
    ones, others = draw.integers(len(now), size=(2, 10 * len(now))).tolist()
    turns = draw.integers(2, size=len(ones)).tolist()
    for one, other, turned in zip(ones, others, turns, strict=True):
        (a, b), (c, d) = now[one], now[other][::-1] if turned else now[other]
        new = (a, d) if a < d else (d, a), (b, c) if b < c else (c, b)
        if a != d and b != c and there.isdisjoint(new):
            there.difference_update((now[one], now[other]))
            there.update(new)
            now[one], now[other] = new
    return now


def erdos_renyi(
    clients: int,
    probability: float,
    connected: bool,
    draw: np.random.Generator,
    later: bool = False,
) -> Graph:
    """Every edge is there with this probability. later: of graphs drawn anew while training goes
    on, so if none connects all clients, the last one's parts are joined by an edge each."""
    count = clients * (clients - 1) // 2
    first = np.cumsum([0, *range(clients - 1, 0, -1)])  # edges are numbered by their smaller end
    for _ in range(TRIES):
        chosen = draw.choice(count, draw.binomial(count, probability), replace=False)
        a = np.searchsorted(first, chosen, side="right") - 1
        found = Graph(tuple(zip(a.tolist(), (a + 1 + chosen - first[a]).tolist(), strict=True)))
        if not connected or len(found.parts(clients)) <= 1:
            return found
    if later:
        firsts = [part[0] for part in found.parts(clients)]
        return custom([*found.edges, *pairwise(firsts)])
    enough = min(1.0, (math.log(clients) + 3) / clients)  # connects 95 % of all large graphs
    raise CommunisError(
        f"[topology] none of {TRIES} graphs drawn with probability = {probability} connects all "
        f"{clients} clients: choose a larger one, such as {enough:.2g}, or permit graphs that fall "
        "into parts with connected = false"
    )
