"""Shares as whole numbers."""

from __future__ import annotations

import numpy as np

from communis.data.recordings.shares import apportioned


def test_whole_numbers_add_up_and_ties_go_to_the_first() -> None:
    assert apportioned((1, 1, 1), 10).tolist() == [4, 3, 3]
    assert apportioned((1, 1, 1), 2).tolist() == [1, 1, 0]
    assert apportioned((0.4, 0.3, 0.3), 7).tolist() == [3, 2, 2]
    assert apportioned((0.0, 1.0), 7).tolist() == [0, 7]
    for n in range(30):
        found = apportioned(np.array([0.2, 0.5, 0.3]), n)
        assert found.sum() == n
        assert np.abs(found - np.array([0.2, 0.5, 0.3]) * n).max() < 1
