"""Who hears whom. Star: one server hears the cohort. Graph: every client aggregates what it and its
neighbours sent. Apart: what it sent itself. A graph may change from round to round, and links may
lose messages.

Everything follows from settings, seed and round, so nothing of it has to be saved."""

from communis.topology.network import NEIGHBOURS, SERVER, Apart, Graph, Star
from communis.topology.settings import Changing, TopologyConfig
from communis.topology.shapes import complete, custom, erdos_renyi, hub, regular, ring

__all__ = [
    "NEIGHBOURS",
    "SERVER",
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
