"""Topologies: which aggregator receives the messages of which clients. In a `Star`, one server
receives those of the cohort. In a `Graph`, every client aggregates its own message and those of its
neighbours; in `Apart`, its own only. A graph may change from round to round, and links may lose
messages.

Topologies follow from settings, seed and round, so checkpoints need not contain them."""

from communis.exchange.topology.network import NEIGHBOURS, Apart, Graph, Star
from communis.exchange.topology.settings import Changing, TopologyConfig
from communis.exchange.topology.shapes import complete, custom, erdos_renyi, hub, regular, ring

__all__ = [
    "NEIGHBOURS",
    "Apart",
    "Changing",
    "Graph",
    "Star",
    "TopologyConfig",
    "complete",
    "custom",
    "erdos_renyi",
    "hub",
    "regular",
    "ring",
]
