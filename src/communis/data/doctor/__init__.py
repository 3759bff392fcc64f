"""The doctor: examines a dataset before training; reports problems, and how to correct them."""

from communis.data.doctor.examine import examine
from communis.data.doctor.finding import Finding
from communis.data.doctor.sets import Clients

__all__ = ["Clients", "Finding", "examine"]
