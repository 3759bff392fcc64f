"""Who learns: data, partition, availability, models and devices -> cards and clients."""

from communis.fleet.bound import BoundFleet
from communis.fleet.description import AnyMethod, Fleet

__all__ = ["AnyMethod", "BoundFleet", "Fleet"]
