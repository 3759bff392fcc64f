"""Bursty dropout: rates, burst lengths and the start against the chain's closed forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from communis import CommunisError
from communis.core.arrays import Array
from communis.fleet.availability.dropout import PRESETS, Dropout, missing_runs


def mask(steps: int, runs: tuple[Array, Array, Array], chains: int) -> Array:
    gone = np.zeros((chains, steps + 1), np.int64)
    chain, first, stop = runs
    np.add.at(gone, (chain, first), 1)
    np.add.at(gone, (chain, stop), -1)
    return np.cumsum(gone, 1)[:, :-1]


def one(steps: int, operating: float, missing: float, seed: int, chains: int = 1) -> Any:
    full = np.full(chains, 1)
    rng = np.random.default_rng(seed)
    return missing_runs(full * steps, full * operating, full * missing, rng)


@pytest.mark.parametrize("preset", PRESETS)
def test_missing_rate_and_burst_lengths_of_the_presets(preset: str) -> None:
    operating, missing = PRESETS[preset]
    hz = 100
    steps = int(20_000 * (operating + missing) * hz)
    _, first, stop = one(steps, operating * hz, missing * hz, 0)
    assert len(first) > 19_000
    assert (stop - first).sum() / steps == pytest.approx(missing / (operating + missing), abs=0.01)
    assert (stop - first)[1:-1].mean() / hz == pytest.approx(missing, rel=0.05)
    assert (first[1:] - stop[:-1]).mean() / hz == pytest.approx(operating, rel=0.05)
    assert (first[1:] > stop[:-1]).all()


def test_the_law_of_a_short_chain_is_that_of_the_transition_matrix() -> None:
    """Joint law of four steps, from the stationary start, all sixteen paths."""
    operating, missing = 3.0, 1.5
    gone = mask(4, one(4, operating, missing, 1, 200_000), 200_000)
    stationary = np.array([operating, missing]) / (operating + missing)
    step = np.array([[1 - 1 / operating, 1 / operating], [1 / missing, 1 - 1 / missing]])
    found = np.bincount(gone @ [8, 4, 2, 1], minlength=16) / 200_000
    for path in range(16):
        a, b, c, d = (path >> np.array([3, 2, 1, 0])) & 1
        law = stationary[a] * step[a, b] * step[b, c] * step[c, d]
        assert found[path] == pytest.approx(law, abs=0.004)


def test_the_start_is_stationary_at_every_step() -> None:
    gone = mask(400, one(400, 50, 100, 2, 20_000), 20_000)
    assert np.abs(gone.mean(0) - 2 / 3).max() < 0.015


def test_chains_of_unlike_length_and_law_side_by_side() -> None:
    rng = np.random.default_rng(3)
    steps = np.array([10, 0, 3_000_000, 1, 500_000])
    operating, missing = np.array([5, 5, 200, 1, 20]), np.array([5, 5, 100, 1, 60])
    chain, first, stop = missing_runs(steps, operating, missing, rng)
    assert (np.diff(chain) >= 0).all()
    assert (first < stop).all()
    assert (stop <= steps[chain]).all()
    assert 1 not in chain
    for i, share in ((2, 1 / 3), (4, 3 / 4)):
        assert (stop - first)[chain == i].sum() / steps[i] == pytest.approx(share, abs=0.01)


def test_a_chain_longer_than_fits_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("communis.fleet.availability.dropout.AT_ONCE", 64)
    chain, first, stop = one(20_000, 2, 3, 4, chains=5)
    assert (np.diff(chain) >= 0).all()
    gone = mask(20_000, (chain, first, stop), 5)
    assert gone.max() == 1
    assert gone.mean(1) == pytest.approx(0.6, abs=0.02)


def test_expected_lengths_of_one_step_alternate() -> None:
    gone = mask(9, one(9, 1, 1, 5, 50), 50)
    assert (np.abs(np.diff(gone, axis=1)) == 1).all()


def test_nothing_to_draw() -> None:
    for steps in ([], [0, 0]):
        ones = np.ones(len(steps))
        runs = missing_runs(np.array(steps, int), ones, ones, np.random.default_rng(0))
        assert [len(part) for part in runs] == [0, 0, 0]


def test_presets_have_the_missing_shares_of_the_paper() -> None:
    bursts = [Dropout("markov", name).bursts for name in PRESETS]  # type: ignore[arg-type]
    shares = [missing / (operating + missing) for operating, missing in bursts]
    assert [round(share, 3) for share in shares] == [0.25, 0.5, 0.25, 0.5, 0.333, 0.5]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kind": "bursty"}, "no kind 'bursty'; there are none, markov, iid"),
        ({"kind": "markov"}, "needs a preset, or operating and missing"),
        ({"kind": "markov", "operating": 5.0}, "needs a preset"),
        ({"kind": "markov", "operating": -5.0, "missing": 1.0}, "needs a preset"),
        ({"kind": "markov", "preset": "pamap2-severe", "missing": 1.0}, "already sets"),
        ({"kind": "markov", "preset": "pamap2"}, "no preset 'pamap2'; there are pamap2-moderate"),
        ({"kind": "markov", "preset": "pamap2-severe", "rate": 0.1}, "rate has no meaning"),
        ({"preset": "pamap2-severe"}, "preset has no meaning with kind = 'none'"),
        ({"kind": "iid"}, "needs a rate"),
        ({"kind": "iid", "rate": 1.0}, "needs a rate"),
        ({"kind": "iid", "rate": 0.5, "missing": 2.0}, "missing has no meaning"),
        ({"least": 0.0}, "least"),
        ({"least": 1.1}, "least"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(CommunisError, match=words):
        Dropout(**settings)
