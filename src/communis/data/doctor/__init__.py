"""The doctor: examines a dataset before training; reports problems, and how to correct them."""

from communis.data.doctor.examine import examine
from communis.data.doctor.finding import Finding

__all__ = ["Finding", "examine"]
