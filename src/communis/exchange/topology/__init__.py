"""Who hears whom. Star: one server hears the cohort. Graph: every client aggregates what it and its
neighbours sent. Apart: what it sent itself. A graph may change from round to round, and links may
lose messages.

Everything follows from settings, seed and round, so nothing of it has to be saved."""

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
