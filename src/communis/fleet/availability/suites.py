"""Suites: the sensors of each client, drawn from a Beta-Bernoulli distribution.

Client k has p_k ~ Beta(a, b) and owns each modality with probability p_k. A client without any
sensor draws its modalities again with the same p_k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.names import Modality
from communis.core.streams import Streams
from communis.fleet.availability.nonempty import nonempty_subset

Preset = Literal["", "homogeneous", "moderate", "severe"]
PRESETS = {"moderate": (45.0, 20.0), "severe": (45.0, 45.0)}  # FedDUET, Table 4


@dataclass(frozen=True)
class Suites:
    """The `[fleet.suites]` table; by default, every client owns every modality."""

    preset: Preset = ""  # named values of a and b, after FedDUET
    a: float = 0.0  # Beta(a, b) of the share of modalities that a client owns; 0: all of them
    b: float = 0.0  # second parameter of Beta(a, b): the larger, the fewer modalities

    def __post_init__(self) -> None:
        if self.preset not in get_args(Preset):
            raise CommunisError(
                f"no preset {self.preset!r}; there are {', '.join(get_args(Preset)[1:])}"
            )
        if self.preset and (self.a or self.b):
            raise CommunisError(
                f"preset = {self.preset!r} already sets a and b: give the preset or the values"
            )
        if (self.a or self.b) and not all(0 < x < math.inf for x in (self.a, self.b)):
            raise CommunisError(f"a and b must both be positive, got {self.a} and {self.b}")

    @property
    def beta(self) -> tuple[float, float] | None:
        """(a, b), or None if every client owns every modality."""
        if self.preset in PRESETS:
            return PRESETS[self.preset]
        return (self.a, self.b) if self.a else None

    def draw(
        self, clients: int, modalities: Sequence[Modality], streams: Streams
    ) -> list[tuple[Modality, ...]]:
        """Returns the sorted modalities of every client, at least one each."""
        names = sorted(modalities)
        owned = np.ones((clients, len(names)), bool)
        if self.beta:
            owned = beta_bernoulli(clients, len(names), *self.beta, streams.generator("suites"))
        return [tuple(m for m, own in zip(names, row, strict=True) if own) for row in owned]


def beta_bernoulli(
    clients: int, modalities: int, a: float, b: float, rng: np.random.Generator
) -> Array:
    """Returns (clients, modalities) bool in which no row is empty."""
    everything = np.ones((clients, modalities), bool)
    return nonempty_subset(everything, rng.beta(a, b, clients), rng)
