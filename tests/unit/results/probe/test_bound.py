"""The audit's statistics: closed forms, and simulations of mechanisms whose epsilon is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from communis.core.arrays import Array
from communis.exchange.privacy import gaussian
from communis.results.probe.bound import epsilon_bound, judge, mu_bound, p_value

DELTA = 1e-5


def test_all_right_without_delta() -> None:
    """q^m = 5 % is what all of m right guesses refute."""
    for m in (10, 100, 1000):
        q = 0.05 ** (1 / m)
        assert epsilon_bound(m, m, m, 0.0) == pytest.approx(math.log(q / (1 - q)), rel=1e-6)


def test_p_value_by_hand() -> None:
    """Three guesses, two right, q = 1/2: P[W >= 2] = 1/2, and of i = 1, 2 right ones that delta may
    add, P[1 <= W < 2] / 1 = 3/8 is more than P[0 <= W < 2] / 2 = 1/4."""
    assert p_value(0.0, 3, 2, 3, 0.0) == pytest.approx(1 / 2)
    assert p_value(0.0, 3, 2, 5, 0.01) == pytest.approx(1 / 2 + 2 * 5 * 0.01 * 3 / 8)
    assert p_value(0.0, 3, 2, 5, 0.2) == 1.0  # never more than certain
    assert p_value(3.0, 3, 0, 5, 0.1) == 1.0  # none right says nothing


def test_delta_costs_and_half_right_proves_nothing() -> None:
    without, with_delta = (epsilon_bound(100, 95, 100, d) for d in (0.0, 1e-4))
    assert 0 < with_delta < without
    assert epsilon_bound(100, 50, 100, 0.0) == 0.0
    assert epsilon_bound(100, 100, 100, 0.5) == 0.0  # at such a delta anything goes
    assert epsilon_bound(100, 95, 100, DELTA, 0.99) < epsilon_bound(100, 95, 100, DELTA)


def test_impossible_counts_are_refused() -> None:
    for counts in ((5, 6, 10), (11, 5, 10), (5, -1, 10)):
        with pytest.raises(ValueError, match="guesses about 10 canaries"):
            epsilon_bound(*counts, DELTA)


def test_randomised_response_is_met_exactly() -> None:
    """It is the mechanism that the theorem is tight for: the truth with e^eps / (1 + e^eps)."""
    rng, true, m = np.random.default_rng(0), 1.0, 500
    q = math.exp(true) / (1 + math.exp(true))
    found = np.array([epsilon_bound(m, int(rng.binomial(m, q)), m, 0.0) for _ in range(400)])
    assert (found > true).mean() <= 0.07
    assert np.median(found) > 0.8 * true


def simulated(mu: float, m: int, rng: np.random.Generator) -> tuple[Array, Array]:
    coins = rng.choice([-1, 1], m)
    return coins * mu / 2 + rng.standard_normal(m), coins


@pytest.mark.slow
@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0])
def test_a_gaussian_of_known_mu(mu: float) -> None:
    """Both bounds are below the truth in 95 % of audits and more, together; with many canaries that
    of the Gaussian comes near, the general one to a third: it pays for knowing nothing."""
    rng, true = np.random.default_rng(1), gaussian.epsilon_of(mu, DELTA)
    audits = [judge(*simulated(mu, 300, rng), DELTA) for _ in range(200)]
    above = [b.epsilon > true or (b.gaussian or 0) > true for b in audits]
    assert np.mean(above) <= 0.05
    many = judge(*simulated(mu, 20_000, rng), DELTA)
    assert 0.33 * true < many.epsilon < true
    assert many.gaussian is not None
    assert 0.9 * true < many.gaussian < true


def test_a_broken_mechanism_is_found_out() -> None:
    coins = np.random.default_rng(2).choice([-1, 1], 200)
    found = judge(coins.astype(float), coins, DELTA)
    assert (found.right, found.guesses) == (200, 200)
    assert found.epsilon == found.highest > 3.5
    assert found.gaussian is not None
    assert found.gaussian > 15


def test_no_information_no_bound() -> None:
    rng = np.random.default_rng(3)
    found = [judge(*simulated(0.0, 200, rng), DELTA) for _ in range(100)]
    assert np.mean([b.epsilon > 0 or (b.gaussian or 0) > 0 for b in found]) <= 0.05
    assert judge(np.ones(4), np.array([1, -1, 1, -1]), DELTA, independent=False).gaussian is None


def test_the_surest_guesses_come_first() -> None:
    """Ten loud and right, ninety faint and wrong every second time."""
    coins = np.ones(100, int)
    scores = np.concatenate([np.full(10, 5.0), np.tile([0.1, -0.1], 45)])
    found = judge(scores, coins, DELTA)
    assert (found.guesses, found.right) == (10, 10)
    assert found.epsilon > 0


def test_mu_bound() -> None:
    assert mu_bound(100, 50) == 0.0
    assert mu_bound(100, 0) == 0.0
    n = 1_000_000
    assert mu_bound(n, int(n * norm.cdf(0.5))) == pytest.approx(1.0, rel=0.01)
