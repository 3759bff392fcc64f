"""Dealing by drawn proportions: exact sums, right on average, the same in every split."""

from __future__ import annotations

import numpy as np
import pytest

from communis import CommunisError
from communis.fleet.partition.shares import apportion, deal


def test_counts_are_the_exact_value_rounded_up_or_down_and_add_up() -> None:
    rng = np.random.default_rng(0)
    share = rng.dirichlet(np.ones(13), 40)
    sizes = rng.integers(0, 500, 40)
    counts = apportion(share, sizes, rng)
    assert (counts.sum(1) == sizes).all()
    assert (np.abs(counts - share * sizes[:, None]) < 1).all()


def test_counts_are_right_on_average() -> None:
    rng = np.random.default_rng(1)
    share = np.tile([0.05, 0.3, 0.65], (20_000, 1))
    counts = apportion(share, np.full(20_000, 3), rng)
    assert counts.mean(0) == pytest.approx([0.15, 0.9, 1.95], abs=0.01)


def test_every_group_is_shuffled_but_not_mixed() -> None:
    rng = np.random.default_rng(2)
    kind = np.repeat([0, 1], 600)
    split = np.tile(np.repeat([0, 1, 2], 200), 2)
    share = np.array([[1.0, 0.0, 0.0], [0.0, 0.25, 0.75]])
    client = deal(kind, split, lambda: share, 0, rng)
    assert (client[kind == 0] == 0).all()
    for s in range(3):
        rows = client[(kind == 1) & (split == s)]
        assert np.bincount(rows, minlength=3).tolist() == [0, 50, 150]
        assert (np.diff(rows) < 0).any()  # not the first fifty


def test_shares_are_drawn_again_until_everybody_has_enough() -> None:
    rng = np.random.default_rng(3)
    offers = iter([np.array([[1.0, 0.0]]), np.array([[0.95, 0.05]]), np.array([[0.5, 0.5]])])
    client = deal(np.zeros(40, int), np.zeros(40, int), lambda: next(offers), 10, rng)
    assert np.bincount(client).tolist() == [20, 20]


def test_what_cannot_be_met_is_refused_with_numbers() -> None:
    rng = np.random.default_rng(4)
    zeros = np.zeros(40, int)
    with pytest.raises(CommunisError, match=r"40 training.*2 clients.*at most 0.*least = 10"):
        deal(zeros, zeros, lambda: np.array([[1.0, 0.0]]), 10, rng)
    with pytest.raises(CommunisError, match=r"fewer clients"):
        deal(zeros, zeros, lambda: np.full((1, 50), 0.02), 1, rng)
