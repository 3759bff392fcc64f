"""Partition: the `[partition]` table of a configuration, and whose client each window is by it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.data.recordings.windows import TRAIN, UNUSED, Windows
from communis.fleet.partition.dirichlet import by_label
from communis.fleet.partition.natural import by_owner, by_scene
from communis.fleet.partition.quantity import by_size
from communis.fleet.partition.virtual import by_block

By = Literal["subject", "scene", "dirichlet", "quantity", "virtual"]


@dataclass(frozen=True)
class Partition:
    """Windows -> clients. A window keeps its split; splits were made before."""

    by: By = "subject"  # what makes a client
    clients: int = 0  # how many; with dirichlet and quantity
    alpha: float = 0.5  # concentration of dirichlet and quantity: small is skewed, large is even
    least: int = 10  # training windows per client, at least; with dirichlet, quantity and virtual
    per_owner: int = 0  # clients that each subject is split into; with virtual

    def __post_init__(self) -> None:
        if self.by not in get_args(By):
            raise CommunisError(f"by = {self.by!r} is not one of {', '.join(get_args(By))}")
        for name, kinds in (("clients", ("dirichlet", "quantity")), ("per_owner", ("virtual",))):
            value = getattr(self, name)
            if self.by in kinds and value < 1:
                raise CommunisError(f"by = {self.by!r} needs {name} of at least 1, got {value}")
            if self.by not in kinds and value:
                raise CommunisError(
                    f"{name} = {value} means nothing with by = {self.by!r}; it belongs to "
                    f"{' and '.join(kinds)}"
                )
        if not 0 < self.alpha < math.inf:
            raise CommunisError(f"alpha must be a positive number, got {self.alpha}")
        if self.least < 1:
            raise CommunisError(f"least must be at least 1, got {self.least}")

    def clients_of(self, windows: Windows, streams: Streams) -> Array:
        """(N,) int64: the client of each window, -1 for unused ones."""
        if self.by == "subject":
            return by_owner(windows)
        if self.by == "scene":
            return by_scene(windows)
        client = np.full(len(windows), -1, np.int64)
        used = np.flatnonzero(windows.split != UNUSED)
        if not len(used):
            raise CommunisError("every window is unused: no part of the data trains or tests")
        split = windows.split[used].astype(np.int64)
        rng = streams.generator("partition")
        if self.by == "quantity":
            client[used] = by_size(split, self.clients, self.alpha, self.least, rng)
        elif self.by == "dirichlet":
            label = self._classes(windows)[used]
            client[used] = by_label(label, split, self.clients, self.alpha, self.least, rng)
        else:
            label = windows.classes
            client[used] = by_block(
                windows.owner[used], label[used], split, windows.start[used], self.per_owner
            )
            self._check_virtual(client, windows)
        return client

    def _classes(self, windows: Windows) -> Array:
        if not windows.task.classes:
            raise CommunisError(
                f"by = {self.by!r} divides by class, but the targets of "
                f"{type(windows.task).__name__} are not classes; choose subject, scene, quantity "
                "or virtual in [partition] by"
            )
        return windows.classes

    def _check_virtual(self, client: Array, windows: Windows) -> None:
        owners = np.unique(windows.owner[client >= 0])
        train = windows.split[client >= 0] == TRAIN
        counts = np.bincount(client[client >= 0][train], minlength=len(owners) * self.per_owner)
        counts = counts.reshape(-1, self.per_owner)
        poor = np.flatnonzero((counts.min(1) < self.least) & counts.any(1))  # others only test
        if len(poor):
            of = counts[poor[0]]
            raise CommunisError(
                f"the {of.sum()} training windows of subject {owners[poor[0]]} give one of its "
                f"{self.per_owner} clients only {of.min()}, but least = {self.least}; choose a "
                "smaller per_owner or least in [partition]"
            )
