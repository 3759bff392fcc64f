"""Which rounds' scores count, as settings and commands name it; `results/selection.py` chooses."""

from __future__ import annotations

from typing import Literal

# The last round; the one with the best mean validation score; every client's own best; or the mean
# of the last TAIL evaluated rounds; FedAPA's tables evaluate every round.
Select = Literal["last", "common", "client", "tail"]
SELECTS: tuple[Select, ...] = ("last", "common", "client", "tail")
