"""Who is online: shares, bursts and days; any round without those before."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Streams
from communis.core.arrays import Array
from communis.fleet.availability.online import Online

MARKOV = Online("markov", online=6, offline=3)


def history(online: Online, clients: int, rounds: int, seed: int = 0) -> Array:
    return np.array([online.who(clients, r, Streams(seed)) for r in range(rounds)])


def test_always() -> None:
    assert Online().who(5, 3, Streams(0)).tolist() == [True] * 5
    assert Online().who(0, 3, Streams(0)).shape == (0,)


def test_independent_rounds() -> None:
    there = history(Online("iid", share=0.3), 2_000, 60)
    assert there.mean() == pytest.approx(0.3, abs=0.01)
    assert (there[1:] & there[:-1]).mean() == pytest.approx(0.09, abs=0.01)


def test_bursts_have_the_expected_lengths_and_share() -> None:
    there = history(MARKOV, 2_000, 150)
    assert there.mean() == pytest.approx(2 / 3, abs=0.01)
    # stationary from the first round on
    assert np.abs(there.mean(1) - 2 / 3).max() < 4 * np.sqrt(2 / 9 / 2_000)
    left = (there[:-1] & ~there[1:]).sum() / there[:-1].sum()
    came = (~there[:-1] & there[1:]).sum() / (~there[:-1]).sum()
    assert 1 / left == pytest.approx(6, rel=0.05)
    assert 1 / came == pytest.approx(3, rel=0.05)


def test_the_law_of_three_rounds_is_that_of_the_chain() -> None:
    there = history(MARKOV, 100_000, 3, seed=1)
    start, step = np.array([1 / 3, 2 / 3]), np.array([[2 / 3, 1 / 3], [1 / 6, 5 / 6]])
    found = np.bincount(np.array([4, 2, 1]) @ there, minlength=8) / 100_000
    for path in range(8):
        a, b, c = (path >> np.array([2, 1, 0])) & 1
        assert found[path] == pytest.approx(start[a] * step[a, b] * step[b, c], abs=0.006)


def test_a_round_forgets_nothing_it_should_remember() -> None:
    """Asked in any order, for any round: the same. And each round follows from the one before."""
    late = MARKOV.who(300, 400, Streams(2))
    there = history(MARKOV, 300, 401, seed=2)
    assert (there[400] == late).all()
    change = (there[1:] != there[:-1]).mean()
    assert change == pytest.approx(2 / 9, abs=0.02)  # independent rounds would give 4 / 9
    assert (MARKOV.who(300, 400, Streams(3)) != late).any()


def test_bursts_of_independent_rounds_are_the_limit() -> None:
    there = history(Online("markov", online=2, offline=2), 2_000, 40)
    assert (there[1:] & there[:-1]).mean() == pytest.approx(0.25, abs=0.02)


def test_days() -> None:
    day = Online("daily", share=0.25, day=12)
    there = history(day, 4_000, 36)
    assert (there.reshape(3, 12, -1).sum(1) == 3).all()  # a quarter of every day
    assert (there[:12] == there[24:]).all()
    assert there.mean(1) == pytest.approx(0.25, abs=0.03)
    changes = np.diff(there[:24].astype(int), axis=0)
    assert ((changes == 1).sum(0) <= 2).all()  # in one piece
    together = history(Online("daily", share=0.25, day=12, spread=0), 50, 12)
    assert together.sum(1).tolist() == [50] * 3 + [0] * 9  # sometimes nobody


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "nightly"}, "no kind 'nightly'; there are always, iid"),
        ({"kind": "iid"}, "needs a share"),
        ({"kind": "daily", "share": 1.5}, "needs a share"),
        ({"kind": "markov"}, "online and offline of at least 1 round"),
        ({"kind": "markov", "online": 5.0, "offline": 0.5}, "at least 1 round"),
        ({"kind": "markov", "online": 1.5, "offline": 1.5}, "use kind = 'iid'"),
        ({"kind": "markov", "online": 5.0, "offline": 5.0, "share": 0.5}, "share has no meaning"),
        ({"share": 0.5}, "no meaning with kind = 'always'"),
        ({"kind": "daily", "share": 0.5, "day": 0}, "day must be"),
        ({"kind": "daily", "share": 0.5, "spread": 2.0}, "spread"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(CommunisError, match=words):
        Online(**settings)
