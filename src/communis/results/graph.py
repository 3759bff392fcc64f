"""Who hears whom: the graphs that runs were on, and what their edges carried."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse.csgraph import shortest_path

from communis.core.arrays import Array
from communis.core.contract import SERVER
from communis.core.errors import CommunisError
from communis.exchange.topology import NEIGHBOURS
from communis.results.finished import Finished


def topology(run: Finished) -> Mapping[str, Any]:
    """The graph as it was written down; empty for a star and in old folders."""
    found: Mapping[str, Any] = run.fleet.get("topology", {})
    if found.get("kind", "star") in ("star", "apart"):
        return {}
    if "edges" not in found:
        raise CommunisError(
            f"{run.path / 'fleet.json'}: its topology has no edges, though it is of kind "
            f"{found['kind']!r}; put back a copy of the file"
        )
    return found


def alike(runs: Sequence[Finished]) -> list[list[Finished]]:
    """The runs on every graph, those with most attackers first."""
    found: dict[str, list[Finished]] = {}
    for run in runs:
        found.setdefault(json.dumps(topology(run), sort_keys=True), []).append(run)
    return [sorted(group, key=lambda run: -len(run.attackers)) for group in found.values()]


def names(groups: Sequence[Sequence[Finished]]) -> list[str]:
    """By kind; where that is not enough, with the cell or method."""
    kinds = [str(g[0].config.get("topology", {}).get("kind", "graph")) for g in groups]
    names = [
        f"{kind.replace('_', ' ')}, {len(g[0].clients)} clients"
        for kind, g in zip(kinds, groups, strict=True)
    ]
    if len(set(names)) == len(names):
        return names
    return [f"{name}, {g[0].place or g[0].method}" for name, g in zip(names, groups, strict=True)]


def carried(run: Finished) -> pd.DataFrame:
    """What clients sent each other: round, both ends of the edge, the lower one first, and payload.
    Of a broadcast the lower end is NEIGHBOURS."""
    t = run.rows("links")
    t = t[(t["sender"] != SERVER) & (t["receiver"] != SERVER)]
    ends = np.sort(t[["sender", "receiver"]].to_numpy(), axis=1)
    return pd.DataFrame({"round": t["round"], "low": ends[:, 0], "high": ends[:, 1],
                         "payload": t["payload"]})  # fmt: skip


def per_round(run: Finished) -> float:
    """Bytes over an edge in both directions, or of a broadcast, in a round in which it was used."""
    found = carried(run).groupby(["round", "low", "high"])["payload"].sum()
    return float(found.mean()) if len(found) else 0.0


def by_edge(run: Finished) -> dict[tuple[int, int], float]:
    """Bytes over the whole run; nothing where clients broadcast."""
    t = carried(run)
    total = t[t["low"] != NEIGHBOURS].groupby(["low", "high"], as_index=False)["payload"].sum()
    columns = (total[name].tolist() for name in ("low", "high", "payload"))
    return {(a, b): float(count) for a, b, count in zip(*columns, strict=True)}


def degrees(edges: Sequence[Sequence[int]], nodes: int) -> Array:
    return np.bincount(np.array(edges, int).ravel(), minlength=nodes)


def hops(edges: Sequence[Sequence[int]], nodes: int) -> Array:
    """How many edges lie between any two nodes; infinity between parts."""
    near = np.zeros((nodes, nodes))
    for a, b in edges:
        near[a, b] = near[b, a] = 1
    return np.asarray(shortest_path(near, unweighted=True))
