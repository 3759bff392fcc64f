"""Graphs of given edges, of fixed shapes, and drawn at random."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from communis.core.errors import CommunisError
from communis.exchange.topology.network import Graph

TRIES = 100  # graphs that are drawn before the search for a connected one ends


def custom(edges: Iterable[tuple[int, int]]) -> Graph:
    return Graph(tuple((min(a, b), max(a, b)) for a, b in edges))


def complete(clients: int) -> Graph:
    return Graph(tuple((a, b) for a in range(clients) for b in range(a + 1, clients)))


def ring(clients: int) -> Graph:
    return Graph(tuple((a, (a + 1) % clients) for a in range(clients)) if clients > 1 else ())


def hub(clients: int, centre: int) -> Graph:
    """The centre is the only neighbour of every other client."""
    return custom((centre, a) for a in range(clients) if a != centre)


def regular(clients: int, degree: int, connected: bool, draw: np.random.Generator) -> Graph:
    """A random graph in which every client has `degree` neighbours."""
    if not 0 < degree < clients or clients * degree % 2:
        raise CommunisError(
            f"[topology] degree = {degree} is not possible with {clients} clients: it must be less "
            "than their number, and one of the two numbers must be even"
        )
    if connected and degree == 1 and clients > 2:
        raise CommunisError(
            f"[topology] degree = 1 makes pairs of the {clients} clients, which connected = true "
            "refuses: choose at least 2, or permit it with connected = false"
        )
    if connected and degree == 2:  # a drawn graph would mostly be several rings
        order = draw.permutation(clients).tolist()
        return custom((order[a], order[b]) for a, b in ring(clients).edges)
    steps = range(1, degree // 2 + 1)
    edges = [(a, (a + step) % clients) for step in steps for a in range(clients)]
    if degree % 2:
        half = clients // 2
        edges += [(a, a + half) for a in range(half)]
    while True:
        edges = _swapped(edges, draw)
        graph = custom(edges)
        if not connected or len(graph.parts(clients)) == 1:
            return graph


def _swapped(edges: Iterable[tuple[int, int]], draw: np.random.Generator) -> list[tuple[int, int]]:
    """Swaps the ends of two random edges, unless that repeats an edge or makes a self-loop. It
    tries ten times as many swaps as there are edges, so that all graphs with the same degrees are
    about equally likely."""
    swapped = [_ordered(a, b) for a, b in edges]
    present = set(swapped)
    firsts, seconds = draw.integers(len(swapped), size=(2, 10 * len(swapped))).tolist()
    turns = draw.integers(2, size=len(firsts)).tolist()
    for first, second, turned in zip(firsts, seconds, turns, strict=True):
        a, b = swapped[first]
        c, d = swapped[second]
        if turned:
            c, d = d, c
        new = _ordered(a, d), _ordered(b, c)
        if a != d and b != c and present.isdisjoint(new):
            present.difference_update((swapped[first], swapped[second]))
            present.update(new)
            swapped[first], swapped[second] = new
    return swapped


def _ordered(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def erdos_renyi(
    clients: int,
    probability: float,
    connected: bool,
    draw: np.random.Generator,
    later: bool = False,
) -> Graph:
    """A random graph that has every edge with this probability. `later` marks a graph drawn during
    training: if no draw connects all clients, edges join the components of the last one."""
    count = clients * (clients - 1) // 2
    first = np.cumsum([0, *range(clients - 1, 0, -1)])  # edges are numbered by their smaller end
    for _ in range(TRIES):
        chosen = draw.choice(count, draw.binomial(count, probability), replace=False)
        a = np.searchsorted(first, chosen, side="right") - 1
        b = a + 1 + chosen - first[a]
        graph = Graph(tuple(zip(a.tolist(), b.tolist(), strict=True)))
        if not connected or len(graph.parts(clients)) <= 1:
            return graph
    if later:
        firsts = [part[0] for part in graph.parts(clients)]
        return custom([*graph.edges, *pairwise(firsts)])
    enough = min(1.0, (math.log(clients) + 3) / clients)  # connects 95 % of all large graphs
    raise CommunisError(
        f"[topology] none of {TRIES} graphs drawn with probability = {probability} connects all "
        f"{clients} clients: choose a larger one, such as {enough:.2g}, or permit graphs that fall "
        "into parts with connected = false"
    )
