"""How many groups a device trains, and which."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from communis.methods.parts.elastic import allocate, budget, least, target

NAMES = [f"g{i}" for i in range(9)]


@pytest.mark.parametrize("seed", range(20))
def test_greedy_is_as_good_as_trying_everything(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gain = dict(zip(NAMES, rng.random(9).tolist(), strict=True))
    mandatory = rng.choice(NAMES, rng.integers(1, 4), replace=False).tolist()
    k = int(rng.integers(len(mandatory), 10))
    found = allocate(NAMES, mandatory, k, gain)
    rest = [j for j in NAMES if j not in mandatory]
    best = max(
        sum(gain[j] for j in (*mandatory, *some)) for some in combinations(rest, k - len(mandatory))
    )
    assert sum(gain[j] for j in found) == pytest.approx(best)
    assert set(mandatory) <= set(found) <= set(NAMES)
    assert len(found) == k


def test_ties_go_to_the_first_and_the_unknown_counts_as_the_median() -> None:
    assert allocate(NAMES, ["g8"], 3, {}) == ["g0", "g1", "g8"]
    gain = {"g0": 1.0, "g1": 5.0, "g2": 9.0}  # g3 to g8 count as 5
    assert allocate(NAMES, [], 3, gain) == ["g1", "g2", "g3"]
    assert allocate(NAMES, [], 9, gain) == NAMES


def test_mandatory_groups_are_trained_whatever_the_budget() -> None:
    assert allocate(NAMES, ["g0", "g1"], 1, {}) == ["g0", "g1"]


def fleet(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    blocks = rng.integers(1, 5, 6)
    return rng.lognormal(0, 2, 6), blocks, blocks * 3 + 2


@pytest.mark.parametrize("coverage", [0.0, 0.4, 0.6, 0.8, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_closed_form_is_what_a_binary_search_finds(coverage: float, seed: int) -> None:
    tau, blocks, owned = fleet(seed)
    need = least(coverage, blocks, owned)

    def enough(seconds: float) -> bool:
        return bool((np.floor((seconds - 0.5) / tau * (1 + 1e-9)) >= need).all())

    low, high = 0.5, 0.5 + float((tau * owned).max())
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    found = target(tau, need, 0.5)
    assert found == pytest.approx(high, rel=1e-6)
    assert (budget(found, tau, blocks, owned, 0.5) >= need).all()


def test_budgets_rise_with_the_time_that_there_is() -> None:
    tau, blocks, owned = fleet(3)
    found = np.array([budget(t, tau, blocks, owned) for t in np.linspace(0, 500, 60)])
    assert (np.diff(found, axis=0) >= 0).all()
    assert (found >= blocks).all()
    assert (found <= owned).all()
    assert (found[0] == blocks).all()


def test_full_coverage_trains_everything() -> None:
    tau, blocks, owned = fleet(1)
    assert (budget(target(tau, least(1.0, blocks, owned)), tau, blocks, owned) == owned).all()


def test_rounding_loses_no_group() -> None:
    """The device that sets the target gets just what it needs, whatever the last digit says."""
    for n in range(1, 200):
        tau, owned = np.array([1 / n]), np.array([7])
        need = least(0.6, np.array([1]), owned)
        assert budget(target(tau, need), tau, np.array([1]), owned).tolist() == [5]
