"""The partition that the data brings."""

from __future__ import annotations

import numpy as np

from communis.fleet.partition.natural import by_owner
from tests.unit.small import windows


def test_owners_become_clients_in_sorted_order() -> None:
    found = by_owner(windows((0,) * 6, owner=(30, 7, 7, 12, 30, -5)))
    assert found.tolist() == [3, 1, 1, 2, 3, 0]
    assert found.dtype == np.int64
    assert found.shape == (6,)
