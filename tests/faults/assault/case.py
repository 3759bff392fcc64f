"""One fault: which one it is, and what it may use."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.faults.assault.experiment import EXPERIMENTS, Experiment


@dataclass(frozen=True)
class Case:
    kind: str
    seed: int
    number: int
    home: Path  # what all cases share, to be read only
    scratch: Path  # of this case alone; empty
    shared: Path  # of the cases that one process does, one after the other

    @property
    def rng(self) -> np.random.Generator:
        """Draws that depend on nothing but kind, seed and number."""
        return np.random.default_rng([self.seed, zlib.crc32(self.kind.encode()), self.number])

    @property
    def name(self) -> str:
        """The experiment whose turn it is."""
        return list(EXPERIMENTS)[self.number % len(EXPERIMENTS)]

    @property
    def experiment(self) -> Experiment:
        return EXPERIMENTS[self.name]
