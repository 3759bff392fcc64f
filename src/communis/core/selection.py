"""The names by which settings and commands select the rounds whose scores count.
`results/selection.py` selects them."""

from __future__ import annotations

from typing import Literal

# last: the last round; common: the one with the best mean validation score; client: every client's
# own best; tail: the mean of the last evaluated rounds.
Select = Literal["last", "common", "client", "tail"]
SELECTS: tuple[Select, ...] = ("last", "common", "client", "tail")
