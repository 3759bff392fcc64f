"""Rank correlations against scipy and a closed form."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from communis.results.correlation import partial_spearman, spearman


def columns(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two quantities that both follow a third, with ties in all of them."""
    rng = np.random.default_rng(seed)
    given = rng.integers(1, 6, n).astype(float)
    x = np.round(-given + rng.normal(size=n), 1)
    y = np.round(given + 2 * rng.normal(size=n), 1)
    return x, y, given


@pytest.mark.parametrize("n", [3, 4, 9, 200])
def test_spearman_is_scipys(n: int) -> None:
    x, y, _ = columns(n)
    expected = stats.spearmanr(x, y)
    found = spearman(x, y)
    assert (found.rho, found.p) == pytest.approx((expected.statistic, expected.pvalue))
    assert found.n == n


@pytest.mark.parametrize("n", [5, 30, 200])
def test_partial_correlation_in_closed_form(n: int) -> None:
    x, y, given = columns(n)
    xy, xz, yz = (stats.spearmanr(a, b).statistic for a, b in ((x, y), (x, given), (y, given)))
    rho = (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))
    found = partial_spearman(x, y, given)
    assert found.rho == pytest.approx(rho)
    t = rho * math.sqrt((n - 3) / (1 - rho**2))
    assert found.p == pytest.approx(2 * stats.t.sf(abs(t), n - 3))


def test_what_a_third_quantity_explains_is_gone() -> None:
    """Both follow the number of sensors, and otherwise have nothing to do with each other."""
    x, y, given = columns(2000)
    assert spearman(x, y).rho < -0.3
    assert abs(partial_spearman(x, y, given).rho) < 0.06


def test_perfect_order() -> None:
    assert spearman([1, 2, 3, 9], [4, 3, 2, 1]) == spearman([1, 2, 3, 4], [9, 5, 4, 0])
    assert (spearman([1, 2, 3, 9], [4, 3, 2, 1]).rho, spearman([1, 2, 3], [1, 2, 3]).p) == (-1, 0)


def test_points_with_nan_are_left_out() -> None:
    nan = math.nan
    found = spearman([1, 2, nan, 4, 5], [2, 1, 3, nan, 9])
    assert found == spearman([1, 2, 5], [2, 1, 9])
    assert found.n == 3
    held = partial_spearman([1, 2, 3, 4, nan], [2, 1, 4, 3, 1], [1, 1, 2, 2, 2])
    assert held.n == 4


@pytest.mark.parametrize(
    ("x", "y"), [([], []), ([1.0], [1.0]), ([1, 2], [2, 1]), ([1, 1, 1], [1, 2, 3])]
)
def test_where_there_is_no_correlation_it_is_nan(x: list[float], y: list[float]) -> None:
    for found in (spearman(x, y), spearman(y, x), partial_spearman(x, y, y)):
        assert math.isnan(found.rho)
        assert math.isnan(found.p)
        assert found.n == len(x)


def test_what_is_fully_explained_has_no_correlation_left() -> None:
    x, y, _ = columns(50)
    assert math.isnan(partial_spearman(x, y, x).rho)
    assert math.isnan(partial_spearman(x, y, -3 * y).rho)


def test_a_constant_explains_nothing() -> None:
    x, y, _ = columns(50)
    assert partial_spearman(x, y, np.full(50, 5.0)).rho == pytest.approx(spearman(x, y).rho)


def test_three_points_leave_nothing_to_test_a_partial_correlation_with() -> None:
    found = partial_spearman([1, 2, 3], [3, 1, 2], [2, 1, 3])
    assert abs(found.rho) == pytest.approx(1)
    assert math.isnan(found.p)
