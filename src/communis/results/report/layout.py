"""Where the nodes of a small graph are drawn, so that its edges can be followed by eye."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from communis.core.arrays import Array
from communis.results.graph import degrees, hops

NEAR = 0.1  # an edge closer to a node than this can be mistaken for one of its own


def layout(edges: Sequence[Sequence[int]], nodes: int, wide: float) -> tuple[Array, bool]:
    """The places of nodes (nodes, 2), at most `wide` to the side and 1 up or down from the middle,
    and whether they are on a circle. Nodes stand around a circle by number, around a circle by
    nearness, or where springs hold them: the layout that is easiest to read."""
    pairs = np.array(edges, int).reshape(-1, 2)
    degree = degrees(edges, nodes)
    by_number = _on_circle(np.arange(nodes))
    if len(pairs) in (0, nodes * (nodes - 1) // 2) and nodes != 2:
        return by_number, True  # nobody is nearer than others
    steps = hops(edges, nodes)
    steps[~np.isfinite(steps)] = steps[np.isfinite(steps)].max() + 1
    by_nearness = _on_circle(_by_angle(steps))
    relaxed = _relaxed(by_nearness, steps, wide)
    layouts = [(by_number, True), (by_nearness, True), (relaxed, False)]
    if nodes == 2 or degree.min() < degree.max():
        layouts.reverse()  # of equally readable layouts, a circle suits regular graphs only

    def unreadable(layout: tuple[Array, bool]) -> int:
        places, circle = layout
        return crossings(places, pairs) + _mistaken(places, circle, pairs)

    return min(layouts, key=unreadable)


def _on_circle(order: Array) -> Array:
    """Clockwise from the top."""
    angle = np.empty(len(order))
    angle[order] = 2 * np.pi * np.arange(len(order)) / len(order)
    return np.stack([np.sin(angle), -np.cos(angle)], 1)


def _by_angle(steps: Array) -> Array:
    """Nodes in the order in which they stand around the middle of the plane that keeps the steps
    between them best (classical scaling)."""
    squares = steps**2
    centred = squares - squares.mean(0) - squares.mean(1)[:, None] + squares.mean()
    _, vectors = np.linalg.eigh(-centred)
    return np.argsort(np.arctan2(vectors[:, -1], vectors[:, -2]).round(9), kind="stable")


def _relaxed(start: Array, steps: Array, wide: float, turns: int = 300) -> Array:
    """Springs as long as the steps between nodes, at rest (stress majorisation), lying down."""
    weights = np.where(steps > 0, steps, np.inf) ** -2.0
    inverse = np.linalg.pinv(np.diag(weights.sum(1)) - weights)
    places = start
    for _ in range(turns):
        apart = np.hypot(*(places[:, None] - places).transpose(2, 0, 1))
        pull = np.divide(weights * steps, apart, out=np.zeros_like(apart), where=apart > 1e-9)
        places = inverse @ ((np.diag(pull.sum(1)) - pull) @ places)
    places = places - places.mean(0)
    places = places @ np.linalg.svd(places)[2].T
    places = places - (places.max(0) + places.min(0)) / 2
    return np.asarray(places / max(np.ptp(places[:, 0]) / wide, np.ptp(places[:, 1])) * 2)


def crossings(places: Array, pairs: Array) -> int:
    """The number of pairs of edges that cross; edges that meet in a node do not."""
    a, b = places[pairs[:, 0]], places[pairs[:, 1]]

    def side(p: Array) -> Array:
        """On which side of every edge the points lie: (edges, points)."""
        to, off = (b - a)[:, None], p[None] - a[:, None]
        return np.asarray(to[..., 0] * off[..., 1] - to[..., 1] * off[..., 0])

    apart = side(a) * side(b) < -1e-12  # [e, f]: the ends of f lie on both sides of e
    return int((apart & apart.T).sum()) // 2


def _mistaken(places: Array, circle: bool, pairs: Array) -> int:
    """A penalty, in crossings, for nodes that stand on another node or on an edge of others; around
    a circle there is room for all nodes."""
    if circle:
        return 0
    a, b = places[pairs[:, 0]], places[pairs[:, 1]]
    to, off = b - a, places[:, None] - a
    along = (off * to).sum(-1) / np.maximum((to**2).sum(-1), 1e-12)
    gap = np.hypot(*(off - along.clip(0, 1)[..., None] * to).transpose(2, 0, 1))
    own = (np.arange(len(places))[:, None, None] == pairs).any(-1)
    apart = np.hypot(*(places[:, None] - places).transpose(2, 0, 1)) + 2 * np.eye(len(places))
    return 3 * int(((gap < NEAR) & ~own).sum()) + 20 * int((apart < 1.8 * NEAR).sum())
