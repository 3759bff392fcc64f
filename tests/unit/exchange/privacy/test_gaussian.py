"""One number for Gaussian noise: against known values, another library, and itself."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest

from communis.core.errors import CommunisError
from communis.exchange.privacy.gaussian import (
    classical_sigma,
    composed,
    delta_of,
    epsilon_of,
    mu_of,
)

DELTA = 1e-5


def claimed(epsilon: float, apart: float = 1.0, rounds: int = 1) -> float:
    """What the textbook's noise for epsilon comes to, if messages are `apart` times C apart."""
    mu = apart / classical_sigma(1.0, epsilon, DELTA)
    return epsilon_of(composed([mu] * rounds), DELTA)


@pytest.mark.parametrize(
    ("epsilon", "classical", "exact"), [(2.0, 2.422403, 1.993812), (8.0, 0.605601, 0.600229)]
)
def test_the_textbook_adds_more_noise_than_needed(
    epsilon: float, classical: float, exact: float
) -> None:
    assert classical_sigma(1.0, epsilon, DELTA) == pytest.approx(classical, rel=1e-6)  # digits here
    assert 1 / mu_of(epsilon, DELTA) == pytest.approx(exact, rel=1e-6)
    three = classical_sigma(3.0, epsilon, DELTA)
    assert three == pytest.approx(3 * classical_sigma(1.0, epsilon, DELTA), rel=1e-12)


def test_the_textbook_adds_too_little_at_sixteen() -> None:
    mu = 1 / classical_sigma(1.0, 16.0, DELTA)
    assert delta_of(mu, 16.0) == pytest.approx(3.4e-4, rel=0.02)
    assert epsilon_of(mu, DELTA) == pytest.approx(18.8989, rel=1e-5)


@pytest.mark.parametrize(
    ("apart", "rounds", "epsilon"),
    [
        (2, 1, 3.51),
        (1 / 0.5, 1, 3.51),  # half of the noise in some direction, at C
        (2 / 0.5, 1, 7.9),  # and at 2 C
        (1, 400, 68.5),
        (2, 400, 206),
        (1, 80, 21.9),
        (2, 80, 58.0),
    ],
)
def test_what_an_epsilon_of_two_for_every_round_comes_to(
    apart: float, rounds: int, epsilon: float
) -> None:
    assert claimed(2.0, apart, rounds) == pytest.approx(epsilon, rel=2e-3)


@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.1, 0.9])
@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 16.5, 1e3])
def test_both_directions_agree_with_each_other_and_with_dp_accounting(
    mu: float, delta: float
) -> None:
    dp = pytest.importorskip("dp_accounting")
    epsilon = epsilon_of(mu, delta)
    other = dp.get_epsilon_gaussian(1 / mu, delta)
    assert epsilon == pytest.approx(other, rel=1e-8, abs=1e-11)  # abs: epsilon may be 0
    if epsilon:  # else a whole range of mu has none
        assert mu_of(epsilon, delta) == pytest.approx(mu, rel=1e-10)
        assert mu_of(epsilon, delta) == pytest.approx(
            1 / dp.get_sigma_gaussian(epsilon, delta), rel=1e-8
        )
        assert delta_of(mu, epsilon) == pytest.approx(delta, rel=1e-6)


def test_delta_is_that_of_two_normals_by_integration() -> None:
    """delta = the integral of (p(x - mu) - e^epsilon p(x))+, where p is the normal density."""
    from scipy.integrate import quad

    def density(x: float) -> float:
        return math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)

    for mu, epsilon in [(0.5, 0.0), (1.0, 1.0), (3.0, 4.0)]:
        start = epsilon / mu + mu / 2  # from here on the difference is positive
        area, _ = quad(
            lambda x, mu=mu, e=epsilon: density(x - mu) - math.exp(e) * density(x), start, 40.0
        )
        assert delta_of(mu, epsilon) == pytest.approx(area, rel=1e-8)


def test_delta_is_not_the_probability_of_a_larger_loss() -> None:
    """The privacy loss x mu - mu^2 / 2 of a draw x from N(mu, 1) exceeds epsilon with probability
    Phi(mu/2 - epsilon/mu): at mu = 1 and delta 1e-5 with 5.3e-5, as docs/guides/privacy.md says."""
    from scipy.integrate import quad

    def density(x: float) -> float:
        return math.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)

    epsilon = epsilon_of(1.0, DELTA)
    assert epsilon == pytest.approx(4.377, rel=1e-4)
    above, _ = quad(lambda x: density(x - 1.0), epsilon + 0.5, 40.0)
    assert above == pytest.approx(5.3e-5, rel=0.01)
    assert above == pytest.approx(math.erfc((epsilon - 0.5) / math.sqrt(2)) / 2, rel=1e-6)
    assert above > 5 * DELTA


def test_rounds_that_follow_earlier_ones_add_up_to_no_more() -> None:
    """Two rounds of mu = 1, the second of which moves only if the first fell high: both together
    are below sqrt(2)-GDP, which they attain if they move whatever happens."""
    from scipy.special import ndtr

    bound, epsilon = composed([1.0, 1.0]), 1.0

    def delta(threshold: float) -> float:
        """x1 is N(1, 1) or N(0, 1); the second mean is 1 or 0 only where x1 > threshold."""
        step = 1e-3
        total = 0.0
        for i in range(20_000):
            x = -9.5 + (i + 0.5) * step
            p, q = (math.exp(-((x - m) ** 2) / 2) / math.sqrt(2 * math.pi) for m in (1.0, 0.0))
            left = epsilon - (x - 0.5)  # of epsilon, after the first round's loss
            if x > threshold:
                total += step * (p * ndtr(0.5 - left) - math.exp(epsilon) * q * ndtr(-0.5 - left))
            elif left < 0:
                total += step * (p - math.exp(epsilon) * q)
        return total

    always, sometimes = delta(-math.inf), delta(0.5)
    assert always == pytest.approx(delta_of(bound, epsilon), rel=1e-5)  # steps of 1e-3
    assert sometimes < always


def test_more_of_anything_is_more() -> None:
    deltas = [1e-9, 1e-5, 1e-2]
    mus = [0.1, 0.5, 1.0, 5.0, 50.0]
    for mu, larger in pairwise(mus):
        assert epsilon_of(mu, DELTA) < epsilon_of(larger, DELTA)
        assert delta_of(mu, 1.0) < delta_of(larger, 1.0)
    for delta, larger in pairwise(deltas):
        assert epsilon_of(1.0, delta) > epsilon_of(1.0, larger)
        assert mu_of(1.0, delta) < mu_of(1.0, larger)


def test_ends() -> None:
    assert epsilon_of(0.0, DELTA) == 0
    assert delta_of(0.0, 0.0) == 0
    assert epsilon_of(1e-6, DELTA) == 0  # delta alone covers it
    assert epsilon_of(math.inf, DELTA) == math.inf
    assert delta_of(math.inf, 300.0) == 1
    assert delta_of(2.0, 0.0) == pytest.approx(math.erf(1 / math.sqrt(2)))
    assert mu_of(0.0, 0.3) == pytest.approx(0.770641, rel=1e-5)  # 2 Phi(mu / 2) - 1 = 0.3
    assert delta_of(20.0, 700.0) < 1e-100  # e^700 is near the end of what floats can hold


def test_composed_is_pythagoras() -> None:
    assert composed([]) == 0
    assert composed([3.0, 4.0]) == pytest.approx(5.0)
    assert composed([0.1] * 400) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: epsilon_of(1.0, 0.0), r"delta must be in \(0, 1\), got 0.0"),
        (lambda: mu_of(1.0, 1.0), r"delta must be in \(0, 1\), got 1.0"),
        (lambda: mu_of(-1.0, DELTA), "epsilon must be finite and not negative, got -1.0"),
        (lambda: mu_of(math.nan, DELTA), "epsilon must be finite"),
        (lambda: delta_of(-1.0, 1.0), "mu must not be negative, got -1.0"),
        (lambda: classical_sigma(1.0, 0.0, DELTA), "clip and epsilon must be positive"),
        (lambda: classical_sigma(0.0, 1.0, DELTA), "clip and epsilon must be positive"),
    ],
)
def test_what_makes_no_sense_is_refused(call: object, words: str) -> None:
    assert callable(call)
    with pytest.raises(CommunisError, match=words):
        call()
