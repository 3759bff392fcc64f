"""Outages: what is missing from clients' windows beyond what the data itself lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from communis.availability.presence import enough, presence
from communis.availability.roles import drop_streams
from communis.availability.trace import Trace
from communis.core import Modality
from communis.recordings.recording import Array
from communis.recordings.windows import TRAIN, Windows
from communis.streams import Streams


@dataclass(frozen=True)
class Outages:
    """Bursts on every client's timeline (a trace), and streams that single windows lack."""

    place: Array  # (N,) seconds on its client's timeline at which each window starts
    trace: Trace | None = None
    least: tuple[float, float, float] = (0.5, 0.5, 0.5)  # share of samples to count, per split
    drop: Sequence[float] = ()  # per client: probability that a window lacks a stream

    def strike(
        self,
        windows: Windows,
        rows: slice | Array,
        client: int,
        suite: Sequence[Modality],
        streams: Streams,
    ) -> dict[Modality, tuple[Array, Array]]:
        """Per modality of a client's suite: which samples are there, (n, steps) or (n,), and which
        windows therefore have the modality, (n,)."""
        split = windows.split[rows]
        least = np.array(self.least)[np.maximum(split, TRAIN)]  # of unused windows it is no matter
        found = {}
        for m in suite:
            own = windows.present[m][rows] if m in windows.present else np.ones(len(split), bool)
            if self.trace is None:
                found[m] = own, own
            else:
                there = presence(self.trace, windows, self.place, rows, client, m)
                found[m] = there, own & enough(there, least)
        if self.drop and self.drop[client] > 0:
            flags = np.stack([found[m][1] for m in suite], 1)
            kept = drop_streams(flags, self.drop[client], streams.generator("drop", client))
            found = {m: (found[m][0], kept[:, i]) for i, m in enumerate(suite)}
        return found
