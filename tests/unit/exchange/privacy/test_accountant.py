"""What sampled rounds add up to: known values, the order of bounds, and the way back to noise."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import pytest

from communis.core import extras
from communis.core.errors import CommunisError
from communis.exchange.privacy import gaussian
from communis.exchange.privacy.accountant import Kind, epsilon_of_rounds, noise_for, split

pytest.importorskip("dp_accounting")
DELTA = 1e-5


@pytest.mark.parametrize(
    ("rounds", "epsilon", "noise"),
    [(1000, 2, 27.236), (1000, 8, 8.127), (50, 2, 6.270), (50, 8, 2.022)],
)
def test_noise_that_is_known(rounds: int, epsilon: float, noise: float) -> None:
    z = noise_for(epsilon, DELTA, 0.4, rounds)
    assert z == pytest.approx(noise, rel=5e-4)  # it is found within 1e-4, and has four digits here
    assert epsilon_of_rounds([(0.4, z)] * rounds, DELTA) <= epsilon
    assert epsilon_of_rounds([(0.4, z * 0.9998)] * rounds, DELTA) > epsilon  # no more than it takes


def test_the_tighter_accountant_needs_less_noise() -> None:
    z = noise_for(2.0, DELTA, 0.4, 50, "pld")
    assert z < noise_for(2.0, DELTA, 0.4, 50, "rdp")
    assert 1.998 < epsilon_of_rounds([(0.4, z)] * 50, DELTA, "pld") <= 2


@pytest.mark.parametrize(
    ("q", "z", "rounds"),
    [(0.4, 27.2, 1000), (0.4, 1.0, 50), (0.01, 0.8, 1000), (0.5, 300.0, 100), (1.0, 10.0, 100)],
)
def test_pld_is_below_rdp_and_both_below_everybody_in_every_round(
    q: float, z: float, rounds: int
) -> None:
    rdp, pld = (epsilon_of_rounds([(q, z)] * rounds, DELTA, kind) for kind in ("rdp", "pld"))
    exact = gaussian.epsilon_of(math.sqrt(rounds) / z, DELTA)
    assert 0 < pld < rdp
    if q < 1:
        assert pld < exact
    else:
        assert exact <= pld < exact * 1.002
        assert exact < rdp < exact * 1.15


@pytest.mark.parametrize("mu", [0.1, 1.0, 16.5])
def test_everybody_in_every_round_is_the_gaussian_by_itself(mu: float) -> None:
    exact = gaussian.epsilon_of(mu, DELTA)
    assert exact <= epsilon_of_rounds([(1.0, 10 / mu)] * 100, DELTA, "pld") < exact * 1.002


def test_the_grid_of_losses_is_fine_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for fine in (0.1, 0.01):
        monkeypatch.setattr("communis.exchange.privacy.accountant.FINE", fine)
        found.append(epsilon_of_rounds([(0.4, 27.2)] * 1000, DELTA, "pld"))
    assert found[1] < found[0] < found[1] * 1.002
    assert found[1] == pytest.approx(1.8412, rel=2e-4)  # the finer grid still costs about 1e-4


@pytest.mark.parametrize("kind", ["rdp", "pld"])
def test_more_of_anything_is_more(kind: Kind) -> None:
    def spent(q: float = 0.2, z: float = 3.0, rounds: int = 30, delta: float = DELTA) -> float:
        return epsilon_of_rounds([(q, z)] * rounds, delta, kind)

    assert spent() < spent(q=0.3) < spent(q=1.0)
    assert spent() < spent(z=2.9) < spent(z=0.5)
    assert spent() < spent(rounds=31) < spent(rounds=300)
    assert spent() < spent(delta=1e-6) < spent(delta=1e-9)


@pytest.mark.parametrize("kind", ["rdp", "pld"])
def test_different_rounds_add_up_in_any_order(kind: Kind) -> None:
    rounds = [(0.4, 6.0)] * 20 + [(0.2, 3.0)] * 10
    both = epsilon_of_rounds(rounds, DELTA, kind)
    assert both == pytest.approx(epsilon_of_rounds(rounds[::-1], DELTA, kind), rel=1e-9)
    assert both > max(
        epsilon_of_rounds(rounds[:20], DELTA, kind), epsilon_of_rounds(rounds[20:], DELTA, kind)
    )
    free = [(0.0, 1.0), (0.4, math.inf)]
    assert epsilon_of_rounds(rounds + free, DELTA, kind) == pytest.approx(both, rel=1e-9)


def test_many_different_rounds_are_bounded_from_above_and_not_by_much() -> None:
    """With everybody in every round it is known exactly what they cost."""
    rounds = [(1.0, 20 + t / 10) for t in range(100)]
    exact = gaussian.epsilon_of(gaussian.composed([1 / z for _, z in rounds]), DELTA)
    assert exact < epsilon_of_rounds(rounds, DELTA, "pld") < 1.025 * exact


def test_ends() -> None:
    assert epsilon_of_rounds([], DELTA) == 0
    assert epsilon_of_rounds([(0.0, 1.0)], DELTA) == 0
    assert epsilon_of_rounds([(0.4, math.inf)], DELTA) == 0
    assert epsilon_of_rounds([(0.4, 2.0), (0.4, 0.0)], DELTA) == math.inf
    assert epsilon_of_rounds([(0.4, z / 10) for z in range(40)], DELTA, "pld") == math.inf


def test_uneven_spending_costs_what_even_spending_does() -> None:
    rounds = 24  # of which no two are alike
    late = [0.8 + 0.4 * (t + 0.5) / rounds for t in range(rounds)]
    z = noise_for(0.5, DELTA, 0.1, rounds, weights=late)
    every = [(0.1, z / math.sqrt(w)) for w in late]
    assert 0.499 < epsilon_of_rounds(every, DELTA) <= 0.5
    assert epsilon_of_rounds(every[:1], DELTA) < epsilon_of_rounds(every[-1:], DELTA)
    assert z == pytest.approx(noise_for(0.5, DELTA, 0.1, rounds), rel=0.03)
    assert noise_for(0.5, DELTA, 0.1, rounds, weights=[1.0] * rounds) == noise_for(
        0.5, DELTA, 0.1, rounds
    )


def test_with_everybody_in_every_round_weights_are_shares_of_the_budget() -> None:
    z = noise_for(3.0, DELTA, 1.0, 4, "pld", [0.4, 0.4, 1.6, 1.6])
    assert z == pytest.approx(2 / gaussian.mu_of(3.0, DELTA), rel=2e-3)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive and finite, got 0.0"),
        ({"epsilon": math.inf}, "epsilon must be positive and finite, got inf"),
        ({"delta": 0.0}, r"delta must be in \(0, 1\), got 0.0"),
        ({"q": 0.0}, r"q must be in \(0, 1\], got 0.0"),
        ({"q": 1.1}, r"q must be in \(0, 1\], got 1.1"),
        ({"rounds": 0}, "rounds must be at least 1, .* got 0 rounds"),
        ({"weights": [1.0]}, "got 2 rounds and 1 weights"),
        ({"weights": [2.0, 1.0]}, "positive and 1 on average"),
        ({"weights": [2.0, 0.0]}, "positive and 1 on average"),
    ],
)
def test_what_makes_no_sense_is_refused(change: dict[str, object], words: str) -> None:
    asked = {"epsilon": 1.0, "delta": DELTA, "q": 0.5, "rounds": 2, **change}
    with pytest.raises(CommunisError, match=words):
        noise_for(**asked)  # type: ignore[arg-type]


def test_impossible_rounds_are_refused() -> None:
    for pair in [(1.5, 1.0), (-0.1, 1.0), (0.5, -1.0), (0.5, math.nan)]:
        with pytest.raises(CommunisError, match="a round must have q in"):
            epsilon_of_rounds([pair], DELTA)
    with pytest.raises(CommunisError, match=r"delta must be in \(0, 1\), got 1"):
        epsilon_of_rounds([(0.5, 1.0)], 1.0)


def test_it_says_how_to_get_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = replace(extras.EXTRAS["privacy"], module="not_there_at_all")
    monkeypatch.setitem(extras.EXTRAS, "privacy", missing)
    for kind in ("rdp", "pld"):
        with pytest.raises(CommunisError, match=r"pip install 'dp-accounting>="):
            epsilon_of_rounds([(0.5, 2.0)], DELTA, kind)


def test_left_out_orders_are_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "absl"):
        epsilon_of_rounds([(0.4, 2.345)] * 10, DELTA)  # the lowest orders do not converge here
    assert not caplog.records
    assert not logging.getLogger("absl").filters


def test_split_gives_a_part_of_the_budget_away() -> None:
    for z, count in [(1.0, 5.0), (27.2, 20.0)]:
        updates = split(z, count)
        assert updates > z
        assert updates**-2 + (2 * count) ** -2 == pytest.approx(z**-2)
    assert split(1.0, 1e6) == pytest.approx(1.0)
    for z, count in [(2.0, 1.0), (2.0, 0.5), (0.0, 1.0), (1.0, -3.0)]:
        with pytest.raises(CommunisError, match="cannot spare any budget"):
            split(z, count)


@pytest.mark.parametrize("kind", ["rdp", "pld"])
@pytest.mark.parametrize("q", [1e-300, 1e-9, 1.0])
def test_very_much_noise_costs_next_to_nothing(kind: Kind, q: float) -> None:
    """Its square overflowed."""
    assert 0 <= epsilon_of_rounds([(q, 1e200)] * 3, 1e-5, kind) < 1e-3
