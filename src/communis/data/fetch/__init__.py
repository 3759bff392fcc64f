"""Fetching of datasets: downloads where the owner allows it, safe unpacking, and instructions for
all others."""

from communis.data.fetch.bring import Outcome, adopt, fetch, instructions

__all__ = ["Outcome", "adopt", "fetch", "instructions"]
