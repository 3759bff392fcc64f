"""The `[partition]` table of a configuration, which assigns every window to a client."""

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
from communis.fleet.partition.natural import by_owner, by_scene, client_names
from communis.fleet.partition.quantity import by_size
from communis.fleet.partition.virtual import by_block

By = Literal["subject", "scene", "dirichlet", "quantity", "virtual"]


@dataclass(frozen=True)
class Partition:
    """How windows are assigned to clients. A window keeps its split, which is made before."""

    by: By = "subject"  # what makes a client: a subject, a scene, drawn label shares (dirichlet),
    # drawn sizes (quantity), or a part of a subject's time (virtual)
    clients: int = 0  # number of clients; with dirichlet and quantity
    alpha: float = 0.5  # concentration of dirichlet and quantity: small is skewed, large is even
    least: int = 10  # fewest training windows of a client; with dirichlet, quantity and virtual
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
                    f"{name} = {value} has no meaning with by = {self.by!r}; it belongs to "
                    f"{' and '.join(kinds)}"
                )
        if not 0 < self.alpha < math.inf:
            raise CommunisError(f"alpha must be a positive number, got {self.alpha}")
        if self.least < 1:
            raise CommunisError(f"least must be at least 1, got {self.least}")

    def clients_of(self, windows: Windows, streams: Streams) -> Array:
        """Returns (N,) int64: the client of each window, -1 for unused ones."""
        if self.by == "subject":
            return by_owner(windows)
        if self.by == "scene":
            return by_scene(windows)
        client = np.full(len(windows), -1, np.int64)
        used = np.flatnonzero(windows.split != UNUSED)
        if not len(used):
            raise CommunisError("every window is unused: no window is in a training or test split")
        split = windows.split[used].astype(np.int64)
        rng = streams.generator("partition")
        if self.by == "quantity":
            client[used] = by_size(split, self.clients, self.alpha, self.least, rng)
        elif self.by == "dirichlet":
            label = self._classes(windows)[used]
            client[used] = by_label(label, split, self.clients, self.alpha, self.least, rng)
        else:
            label = windows.classes[used]
            client[used] = by_block(
                windows.owner[used], label, split, windows.start[used], self.per_owner
            )
            self._check_virtual(client, windows)
        return client

    def names_of(self, windows: Windows, client_of: Array) -> tuple[str, ...]:
        """Returns the own name of every client; nothing where a client is no subject or scene."""
        if self.by not in ("subject", "scene"):
            return ()
        return client_names(windows, self.by, client_of)

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
        trains = counts.any(1)  # the other subjects are only tested
        too_few = np.flatnonzero((counts.min(1) < self.least) & trains)
        if len(too_few):
            windows_of = counts[too_few[0]]
            raise CommunisError(
                f"the {windows_of.sum()} training windows of subject {owners[too_few[0]]} give one "
                f"of its {self.per_owner} clients only {windows_of.min()}, but least = "
                f"{self.least}; choose a smaller per_owner or least in [partition]"
            )
