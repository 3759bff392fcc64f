"""The communication graphs of runs, and the bytes on their edges."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse.csgraph import shortest_path

from communis.core.arrays import Array
from communis.core.contract import SERVER
from communis.core.errors import CommunisError
from communis.exchange.topology import NEIGHBOURS
from communis.results.compare import runs_by_method
from communis.results.finished import Finished


def topology(run: Finished) -> Mapping[str, Any]:
    """Returns the graph in the run's folder; empty for a star and in old folders."""
    graph: Mapping[str, Any] = run.fleet.get("topology", {})
    if graph.get("kind", "star") in ("star", "apart"):
        return {}
    if "edges" not in graph:
        raise CommunisError(
            f"{run.path / 'fleet.json'}: its topology has no edges, though it is of kind "
            f"{graph['kind']!r}; put back a copy of the file"
        )
    return graph


@dataclass(frozen=True)
class Facts:
    """A graph in numbers."""

    edges: int
    fewest_neighbours: int
    most_neighbours: int
    diameter: float  # infinite where the graph falls into parts
    parts: Sequence[int]  # how many clients each has, the largest first
    changes: bool  # from round to round
    loss: float  # probability that a message is lost
    link: str  # unicast or broadcast; empty in old folders
    bytes_per_round: Mapping[str, float]  # by method: over an edge, or of a broadcast


def facts(group: Sequence[Finished]) -> Facts:
    """Returns the graph of runs that share one, in numbers."""
    about = topology(group[0])
    clients = len(group[0].clients)
    neighbours = degrees(about["edges"], clients)
    parts = sorted(map(len, about.get("parts", ())), reverse=True)
    return Facts(
        edges=len(about["edges"]),
        fewest_neighbours=int(neighbours.min()),
        most_neighbours=int(neighbours.max()),
        diameter=float(hops(about["edges"], clients).max(initial=0)),
        parts=parts,
        changes=bool(about.get("changes")),
        loss=float(about.get("loss", 0)),
        link=str(about.get("link", "")),
        bytes_per_round={
            method: per_round(runs[0]) for method, runs in runs_by_method(group).items()
        },
    )


def alike(runs: Sequence[Finished]) -> list[list[Finished]]:
    """Returns the runs by graph; within each group, those with most attackers come first."""
    by_graph: dict[str, list[Finished]] = {}
    for run in runs:
        by_graph.setdefault(json.dumps(topology(run), sort_keys=True), []).append(run)
    return [sorted(group, key=lambda run: -len(run.attackers)) for group in by_graph.values()]


def names(groups: Sequence[Sequence[Finished]]) -> list[str]:
    """Returns the names of graphs: the kind, with the cell or method where kinds are equal."""
    plain = []
    for group in groups:
        kind = str(group[0].config.get("topology", {}).get("kind", "graph"))
        plain.append(f"{kind.replace('_', ' ')}, {len(group[0].clients)} clients")
    if len(set(plain)) == len(plain):
        return plain
    return [
        f"{name}, {group[0].place or group[0].method}"
        for name, group in zip(plain, groups, strict=True)
    ]


def carried(run: Finished) -> pd.DataFrame:
    """Returns the messages between clients: round, both ends of the edge (the lower one first) and
    payload. For a broadcast the lower end is NEIGHBOURS."""
    links = run.rows("links")
    links = links[(links["sender"] != SERVER) & (links["receiver"] != SERVER)]
    ends = np.sort(links[["sender", "receiver"]].to_numpy(), axis=1)
    return pd.DataFrame(
        {
            "round": links["round"],
            "low": ends[:, 0],
            "high": ends[:, 1],
            "payload": links["payload"],
        }
    )


def per_round(run: Finished) -> float:
    """Returns the bytes on an edge in both directions, or of a broadcast, per round in which it was
    used."""
    totals = carried(run).groupby(["round", "low", "high"])["payload"].sum()
    return float(totals.mean()) if len(totals) else 0.0


def by_edge(run: Finished) -> dict[tuple[int, int], float]:
    """Returns the bytes on every edge over the whole run; empty where clients broadcast."""
    messages = carried(run)
    unicast = messages[messages["low"] != NEIGHBOURS]
    totals = unicast.groupby(["low", "high"], as_index=False)["payload"].sum()
    edges = zip(totals["low"].tolist(), totals["high"].tolist(), strict=True)
    return {edge: float(total) for edge, total in zip(edges, totals["payload"], strict=True)}


def degrees(edges: Sequence[Sequence[int]], nodes: int) -> Array:
    """Returns the number of neighbours of every node."""
    return np.bincount(np.array(edges, int).ravel(), minlength=nodes)


def degree_counts(run: Finished, most: int) -> dict[tuple[int, int], int]:
    """Returns how many clients have a number of neighbours in each of at most `most` ranges."""
    neighbours = degrees(topology(run)["edges"], len(run.clients))
    low, high = int(neighbours.min()), int(neighbours.max())
    size = math.ceil((high - low + 1) / most)
    counts = {}
    for first in range(low, high + 1, size):
        last = min(first + size - 1, high)
        inside = (neighbours >= first) & (neighbours <= last)
        counts[first, last] = int(inside.sum())
    return counts


def hops(edges: Sequence[Sequence[int]], nodes: int) -> Array:
    """Returns the number of edges between any two nodes; infinity between components."""
    near = np.zeros((nodes, nodes))
    for a, b in edges:
        near[a, b] = near[b, a] = 1
    return np.asarray(shortest_path(near, unweighted=True))
