"""Dirichlet over labels: limits, the law, equal distributions across splits, speed."""

from __future__ import annotations

import numpy as np
import pytest

from communis.core.arrays import Array
from communis.fleet.partition.dirichlet import by_label, label_shares


def table(client: Array, label: Array, clients: int, labels: int) -> Array:
    return np.bincount(client * labels + label, minlength=clients * labels).reshape(clients, labels)


def test_a_large_alpha_gives_everybody_the_same() -> None:
    label, split = np.repeat(np.arange(5), 300), np.tile([0, 0, 1, 2, 0], 300)
    client = by_label(label, split, 10, 1e9, 1, np.random.default_rng(0))
    for s in range(3):
        here = table(client[split == s], label[split == s], 10, 5)
        assert np.ptp(here, axis=0).max() <= 1


@pytest.mark.parametrize("alpha", [1e-3, 1e-6])
def test_a_small_alpha_gives_each_client_one_label(alpha: float) -> None:
    label, split = np.repeat(np.arange(4), 5_000), np.zeros(20_000, int)
    client = by_label(label, split, 40, alpha, 1, np.random.default_rng(1))
    counts = table(client, label, 40, 4)
    assert (counts.max(1) / counts.sum(1) > 0.99).mean() > 0.95
    assert (counts.sum(1) > 0).all()


def test_the_shares_follow_the_dirichlet_law() -> None:
    """With many clients what a label's clients want of it adds up to nearly the same for every
    label, so a client's distribution is its own draw: variance (1/L)(1 - 1/L) / (L alpha + 1)."""
    labels, alpha = 4, 0.7
    share = label_shares(labels, 40_000, alpha, np.random.default_rng(2))
    assert share.sum(1) == pytest.approx(1)
    wanted = share * 40_000 / labels
    assert wanted.mean() == pytest.approx(1 / labels, abs=1e-9)
    assert wanted.var() == pytest.approx(0.25 * 0.75 / (labels * alpha + 1), rel=0.02)


def test_the_splits_of_a_client_share_a_distribution() -> None:
    rng = np.random.default_rng(3)
    label, split = rng.integers(0, 6, 60_000), rng.integers(0, 3, 60_000)
    client = by_label(label, split, 8, 0.3, 1, rng)
    train, val, test = (table(client[split == s], label[split == s], 8, 6) for s in range(3))
    size = np.bincount(label * 3 + split).reshape(6, 3)
    assert np.abs(train / size[:, 0] - val / size[:, 1]).max() < 2 / size.min()
    assert np.abs(train / size[:, 0] - test / size[:, 2]).max() < 2 / size.min()


def test_seed_and_order_of_the_windows() -> None:
    rng = np.random.default_rng(4)
    label, split = rng.integers(0, 5, 3_000), rng.integers(0, 3, 3_000)

    def clients(seed: int, order: Array) -> Array:
        drawn = by_label(label[order], split[order], 6, 0.5, 5, np.random.default_rng(seed))
        return drawn

    straight, mixed = np.arange(3_000), rng.permutation(3_000)
    assert (clients(0, straight) == clients(0, straight)).all()
    assert (clients(0, straight) != clients(1, straight)).any()
    # In another order other windows go to a client, but just as many of each label.
    counts = table(clients(0, straight), label, 6, 5)
    assert (counts == table(clients(0, mixed), label[mixed], 6, 5)).all()


def test_a_label_that_does_not_occur_changes_nothing() -> None:
    label, split = np.repeat([2, 7], 100), np.zeros(200, int)
    client = by_label(label, split, 3, 1.0, 1, np.random.default_rng(5))
    packed = by_label(np.repeat([0, 1], 100), split, 3, 1.0, 1, np.random.default_rng(5))
    assert (client == packed).all()


def test_a_million_windows() -> None:
    rng = np.random.default_rng(6)
    label, split = rng.integers(0, 27, 10**6), rng.integers(0, 3, 10**6)
    client = by_label(label, split, 100, 0.3, 10, rng)
    assert len(np.unique(client)) == 100
