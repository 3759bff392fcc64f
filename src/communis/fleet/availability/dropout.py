"""Dropout: the times at which the sensors of a client deliver no data.

Each sensor is an independent two-state Markov chain on the client's timeline, sample by sample:
P(present -> present) = 1 - 1 / L_operating and P(missing -> missing) = 1 - 1 / L_missing, where
L = expected seconds x rate. It starts from its stationary distribution, missing with probability
L_missing / (L_operating + L_missing). The chain is drawn as alternating geometric runs, so the cost
grows with the number of bursts and not with the number of samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError

Kind = Literal["none", "markov", "iid"]
PRESETS = {  # expected seconds operating and missing: FedDUET, Table 4
    "pamap2-moderate": (100.0, 100 / 3),
    "pamap2-severe": (100.0, 100.0),
    "realworld-moderate": (200.0, 200 / 3),
    "realworld-severe": (200.0, 200.0),
    "sleepedf-moderate": (1000.0, 500.0),
    "sleepedf-severe": (1000.0, 1000.0),
}
Preset = Literal[
    "",
    "pamap2-moderate",
    "pamap2-severe",
    "realworld-moderate",
    "realworld-severe",
    "sleepedf-moderate",
    "sleepedf-severe",
]
AT_ONCE = 1 << 21  # runs held in memory while drawing


@dataclass(frozen=True)
class Dropout:
    """The tables `[fleet.dropout]` (training) and `[fleet.dropout_test]` (validation and test)."""

    kind: Kind = "none"  # bursts in time (markov), or independently window by window (iid)
    preset: Preset = ""  # named values of operating and missing; with markov
    operating: float = 0.0  # expected seconds without interruption; with markov
    missing: float = 0.0  # expected seconds of an interruption; with markov
    rate: float = 0.0  # probability that a window lacks a sensor; with iid
    least: float = 0.5  # share of its samples that a window needs to count as present

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise CommunisError(f"no kind {self.kind!r}; there are {', '.join(get_args(Kind))}")
        if self.preset and self.preset not in PRESETS:
            raise CommunisError(f"no preset {self.preset!r}; there are {', '.join(PRESETS)}")
        given = {n for n in ("preset", "operating", "missing", "rate") if getattr(self, n)}
        allowed = {"markov": {"preset", "operating", "missing"}, "iid": {"rate"}}
        if extra := given - allowed.get(self.kind, set()):
            raise CommunisError(
                f"{', '.join(sorted(extra))} has no meaning with kind = {self.kind!r}: leave it out"
            )
        if self.kind == "markov":
            if self.preset and given != {"preset"}:
                raise CommunisError(
                    f"preset = {self.preset!r} already sets operating and missing: give the preset "
                    "or the values"
                )
            if not all(0 < seconds < math.inf for seconds in self.bursts):
                raise CommunisError(
                    "kind = 'markov' needs a preset, or operating and missing in seconds; got "
                    f"{self.operating} and {self.missing}"
                )
        if self.kind == "iid" and not 0 < self.rate < 1:
            raise CommunisError(f"kind = 'iid' needs a rate between 0 and 1, got {self.rate}")
        if not 0 < self.least <= 1:
            raise CommunisError(f"least must be a share in (0, 1], got {self.least}")

    @property
    def bursts(self) -> tuple[float, float]:
        """The expected seconds operating and missing."""
        return PRESETS.get(self.preset, (self.operating, self.missing))


def missing_runs(
    steps: Array, operating: Array, missing: Array, rng: np.random.Generator
) -> tuple[Array, Array, Array]:
    """Draws the missing runs of n independent chains: the chain, the first step and the step after
    the last, sorted by chain and time.

    steps (n,): length of each chain; operating, missing (n,): expected run lengths in steps, at
    least 1.
    """
    gone = rng.random(len(steps)) < missing / (operating + missing)
    # The geometric distribution has no memory: the first run has the same distribution as the
    # others although it began earlier.
    stop = 1 / np.where(gone, [missing, operating], [operating, missing])  # of even and odd runs
    at = np.zeros(len(steps), np.int64)
    runs: list[tuple[Array, Array, Array]] = []
    live = np.flatnonzero(steps > 0)
    while len(live):
        left = (steps - at)[live] / (operating + missing)[live]
        pairs = min(int(1.1 * left.max()) + 4, max(1, AT_ONCE // (2 * len(live))))
        lengths = rng.geometric(stop.T[live, None, :], (len(live), pairs, 2))
        ends = at[live, None] + np.cumsum(lengths.reshape(len(live), -1), 1)
        which = np.where(gone[live], 0, 1)
        end = ends.reshape(lengths.shape)[np.arange(len(live)), :, which]
        first = end - lengths[np.arange(len(live)), :, which]
        row, column = np.nonzero(first < steps[live, None])
        end = np.minimum(end, steps[live, None])
        runs.append((live[row], first[row, column], end[row, column]))
        at[live] = ends[:, -1]
        live = live[at[live] < steps[live]]
    if not runs:
        empty = np.zeros(0, np.int64)
        return empty, empty, empty
    chain, first, end = (np.concatenate(parts) for parts in zip(*runs, strict=True))
    order = np.argsort(chain, kind="stable")
    return chain[order], first[order], end[order]
