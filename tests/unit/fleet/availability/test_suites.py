"""Sensor suites: the Beta-Bernoulli law against its closed forms, and no client without sensors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from communis import CommunisError, Streams
from communis.fleet.availability.nonempty import nonempty_subset
from communis.fleet.availability.suites import PRESETS, Suites, beta_bernoulli

CLIENTS = 200_000


def empty(modalities: int, a: float, b: float) -> float:
    """P(no sensor) = E (1 - p)^M of the Beta-Bernoulli law before any redraw."""
    return math.prod((b + i) / (a + b + i) for i in range(modalities))


def mean_size(modalities: int, a: float, b: float) -> float:
    """E of M p / (1 - (1 - p)^M), p ~ Beta(a, b): redrawing the suite with the same p."""
    p = np.linspace(0, 1, 100_001)[1:-1]
    weight = np.exp((a - 1) * np.log(p) + (b - 1) * np.log1p(-p))
    size = modalities * p / (1 - (1 - p) ** modalities)
    return float((weight * size).sum() / weight.sum())


def test_the_closed_forms_give_the_published_numbers() -> None:
    severe = PRESETS["severe"]
    assert [round(100 * empty(m, *severe), 1) for m in (6, 5, 4)] == [1.8, 3.5, 6.7]
    assert mean_size(6, *PRESETS["moderate"]) == pytest.approx(4.16, abs=0.005)
    # Drawing p again as well would give 3 / (1 - P(empty)), which is 3.06 to two places.
    assert mean_size(6, *severe) == pytest.approx(3.053, abs=0.0005)
    assert 3 / (1 - empty(6, *severe)) == pytest.approx(3.056, abs=0.0005)


@pytest.mark.parametrize("modalities", [6, 5, 4])
@pytest.mark.parametrize("preset", ["moderate", "severe"])
def test_before_the_redraw(preset: str, modalities: int) -> None:
    a, b = PRESETS[preset]
    rng = np.random.default_rng(0)
    size = rng.binomial(modalities, rng.beta(a, b, CLIENTS))  # what the law says, by another way
    assert size.mean() == pytest.approx(modalities * a / (a + b), abs=0.015)
    assert (size == 0).mean() == pytest.approx(empty(modalities, a, b), abs=0.0015)


@pytest.mark.parametrize(("preset", "size"), [("moderate", 4.16), ("severe", 3.06)])
def test_after_the_redraw(preset: str, size: float) -> None:
    owned = beta_bernoulli(CLIENTS, 6, *PRESETS[preset], np.random.default_rng(1))
    assert owned.any(1).all()
    assert owned.sum(1).mean() == pytest.approx(size, abs=0.01)
    assert owned.mean(0) == pytest.approx(size / 6, abs=0.005)  # no modality is favoured


@pytest.mark.parametrize("p", [0.05, 0.5])
def test_the_law_is_that_of_drawing_again_until_not_empty(p: float) -> None:
    """All seven outcomes of three entries, and three of two where one is not there."""
    rng = np.random.default_rng(2)
    for there in ((True, True, True), (True, False, True)):
        places = np.tile(there, (CLIENTS, 1))
        kept = nonempty_subset(places, np.full(CLIENTS, p), rng)
        m = sum(there)
        for outcome in itertools.product([False, True], repeat=3):
            possible = any(outcome) and all(t or not o for t, o in zip(there, outcome, strict=True))
            n = sum(outcome)
            law = p**n * (1 - p) ** (m - n) / (1 - (1 - p) ** m) if possible else 0.0
            assert (kept == outcome).all(1).mean() == pytest.approx(law, abs=0.004)


def test_tiny_probabilities_are_no_trap_and_nothing_comes_of_nothing() -> None:
    rng = np.random.default_rng(3)
    there = np.tile([True, True, False, True], (30_000, 1))
    kept = nonempty_subset(there, np.repeat([0.0, 1e-300, 1e-14], 10_000), rng)
    assert (kept.sum(1) == 1).all()
    assert kept.mean(0) == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3], abs=0.01)
    assert (nonempty_subset(there, np.ones(30_000), rng) == there).all()
    assert not nonempty_subset(np.zeros((5, 2), bool), np.ones(5), rng).any()
    assert beta_bernoulli(CLIENTS, 10, 0.05, 5.0, rng).any(1).all()


def test_suites_are_sorted_and_drawn_by_seed() -> None:
    names = ("gyro", "acc", "hr")
    drawn = Suites("severe").draw(50, names, Streams(1))
    assert all(suite and list(suite) == sorted(suite) for suite in drawn)
    assert drawn == Suites("severe").draw(50, names, Streams(1))
    assert drawn != Suites("severe").draw(50, names, Streams(2))
    assert drawn == Suites(a=45, b=45).draw(50, names, Streams(1))
    assert len(set(drawn)) > 3


def test_homogeneous_is_everything() -> None:
    for suites in (Suites(), Suites("homogeneous")):
        assert suites.draw(3, ("b", "a"), Streams(0)) == [("a", "b")] * 3


@pytest.mark.parametrize(
    "settings",
    [{"a": 1.0}, {"a": -1.0, "b": 2.0}, {"preset": "severe", "a": 1.0, "b": 1.0}, {"preset": "x"}],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(CommunisError, match=r"positive|already sets|no preset"):
        Suites(**settings)  # type: ignore[arg-type]
