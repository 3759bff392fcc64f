"""Outages: sensor data removed from clients' windows in addition to the gaps in the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.streams import Streams
from communis.data.recordings.windows import UNUSED, Windows
from communis.fleet.availability.presence import enough, presence
from communis.fleet.availability.roles import drop_streams
from communis.fleet.availability.trace import Trace


@dataclass(frozen=True)
class Outages:
    """Bursts on every client's timeline (a trace), and modalities removed from single windows."""

    place: Array  # (N,) seconds on its client's timeline at which each window starts
    trace: Trace | None = None
    drop: Sequence[float] = ()  # per client: probability that a window lacks a modality
    number: int = 0  # number of this draw among several

    def strike(
        self,
        windows: Windows,
        rows: Array,
        client: int,
        suite: Sequence[Modality],
        streams: Streams,
    ) -> dict[Modality, tuple[Array, Array]]:
        """Returns, for each modality of a client's suite, which samples are present, (n, steps) or
        (n,), and which windows therefore have the modality, (n,)."""
        struck = {m: self._bursts(windows, rows, client, m) for m in suite}
        if self.drop and self.drop[client] > 0:
            flags = np.stack([struck[m][1] for m in suite], 1)
            further = (self.number,) if self.number else ()
            generator = streams.generator("drop", client, *further)
            kept = drop_streams(flags, self.drop[client], generator)
            struck = {m: (struck[m][0], kept[:, i]) for i, m in enumerate(suite)}
        return struck

    def _bursts(
        self, windows: Windows, rows: Array, client: int, m: Modality
    ) -> tuple[Array, Array]:
        own = windows.present[m][rows] if m in windows.present else np.ones(len(rows), bool)
        if self.trace is None:
            return own, own
        there = presence(self.trace, windows, self.place, rows, client, m)
        known = there
        if there.ndim == 2 and m in windows.present:  # gaps in the data count as well
            partly = np.flatnonzero(own & there.any(1) & ~there.all(1))
            x = np.isfinite(windows.inputs[m][rows[partly]])
            known = there.copy()
            known[partly] &= x.any(tuple(range(1, x.ndim - 1)))
        least = np.zeros(len(rows))
        used = windows.split[rows] != UNUSED
        least[used] = np.array(self.trace.least)[windows.split[rows][used]]
        return there, own & enough(known, least)
