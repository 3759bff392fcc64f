"""Recording: what a dataset source reads from its files, before windows are cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from communis.core import Modality

Array = NDArray[Any]


@dataclass(frozen=True)
class Recording:
    """One uninterrupted recording of one subject: every modality at its own rate, one label
    throughout."""

    streams: Mapping[Modality, Array]  # (steps, channels)
    rates: Mapping[Modality, float]  # Hz
    label: int
    subject: int
    session: int = 0

    @property
    def seconds(self) -> float:
        return min(len(values) / self.rates[m] for m, values in self.streams.items())


@dataclass(frozen=True)
class Dataset:
    """Recordings with the names of their classes."""

    recordings: tuple[Recording, ...]
    labels: tuple[str, ...]

    @property
    def modalities(self) -> tuple[Modality, ...]:
        return tuple(sorted({m for r in self.recordings for m in r.streams}))

    @property
    def subjects(self) -> tuple[int, ...]:
        return tuple(int(s) for s in np.unique([r.subject for r in self.recordings]))
