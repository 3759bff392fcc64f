"""Online: which clients are reachable in a round.

The clients of a round follow from the seed alone, so that a resumed run needs no saved state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.streams import Streams

Kind = Literal["always", "iid", "markov", "daily"]


@dataclass(frozen=True)
class Online:
    """The `[fleet.online]` table. In a round in which no client is online, no client trains."""

    kind: Kind = "always"  # how clients are online: always, independently in each round (iid), in
    # runs of rounds (markov), or at the same time of each day (daily)
    share: float = 0.0  # share of the rounds in which a client is online; with iid and daily
    online: float = 0.0  # expected length of an online period, in rounds; with markov
    offline: float = 0.0  # expected length of an offline period, in rounds; with markov
    day: int = 24  # rounds in a day; with daily
    spread: float = 1.0  # part of a day over which the clients' days begin; with daily

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise CommunisError(f"no kind {self.kind!r}; there are {', '.join(get_args(Kind))}")
        given = {name for name in ("share", "online", "offline") if getattr(self, name)}
        allowed = {"always": set(), "markov": {"online", "offline"}}.get(self.kind, {"share"})
        if extra := given - allowed:
            raise CommunisError(
                f"{', '.join(sorted(extra))} has no meaning with kind = {self.kind!r}: leave it out"
            )
        if self.kind in ("iid", "daily") and not 0 < self.share <= 1:
            raise CommunisError(f"kind = {self.kind!r} needs a share in (0, 1], got {self.share}")
        if self.kind == "markov":
            if not all(1 <= rounds < math.inf for rounds in (self.online, self.offline)):
                raise CommunisError(
                    "kind = 'markov' needs online and offline of at least 1 round, got "
                    f"{self.online} and {self.offline}"
                )
            if 1 / self.online + 1 / self.offline > 1 + 1e-9:
                raise CommunisError(
                    f"online = {self.online:g} and offline = {self.offline:g}: the periods are "
                    "shorter than those of independent rounds; use kind = 'iid'"
                )
        if self.day < 1 or not 0 <= self.spread <= 1:
            raise CommunisError(
                f"day must be at least 1 round and spread in [0, 1], got {self.day}, {self.spread}"
            )

    def who(self, clients: int, round: int, streams: Streams) -> Array:
        """Returns (clients,) bool: which clients are online in this round, possibly none."""
        if self.kind == "always":
            return np.ones(clients, bool)
        if self.kind == "iid":
            return streams.generator("online", round).random(clients) < self.share
        if self.kind == "daily":
            begins = self.spread * streams.generator("online").random(clients)
            time: Array = (round % self.day / self.day - begins) % 1.0
            return time < self.share
        return self._markov(clients, round, streams)

    def _markov(self, clients: int, round: int, streams: Streams) -> Array:
        """Evaluates the two-state chain backwards. The draw of a round either fixes a client's
        state independently of the state before, or leaves it unchanged. Therefore only the rounds
        since each client's last fixing draw are evaluated. The chain starts stationary in round
        0."""
        come, stay = 1 / self.offline, 1 - 1 / self.online  # come <= stay
        state = np.zeros(clients, bool)
        unsettled = np.ones(clients, bool)
        for before in range(round, -1, -1):
            if not unsettled.any():
                return state
            drawn = streams.generator("online", before).random(clients)
            state |= unsettled & (drawn < come)
            unsettled &= (drawn >= come) & (drawn < stay)
        start = streams.generator("online").random(clients)
        return state | (unsettled & (start < self.online / (self.online + self.offline)))
