"""Scales of channels: the same in any unit, and a constant stays one."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from communis.core.arrays import Array
from communis.core.samples import Scale, measured, summed

Measure = Callable[[Array], Scale | None]


def at_once(x: Array) -> Scale | None:
    return measured(np.moveaxis(x, 1, -1))


def in_parts(x: Array) -> Scale | None:
    return summed([x[:3], x[3:3], x[3:4], x[4:]])


def drawn(seed: int = 0) -> Array:
    """Windows (n, channels, steps)."""
    return np.random.default_rng(seed).standard_normal((9, 2, 50))


@pytest.mark.parametrize("measure", [at_once, in_parts])
@pytest.mark.parametrize("unit", [1e-9, 1.0, 1e9])
def test_scores_do_not_depend_on_the_unit(measure: Measure, unit: float) -> None:
    """A field in tesla varies by 1e-5, and is no constant."""
    x = drawn() + 3
    scaled, plain = (x * unit).astype(np.float32), x.astype(np.float32)
    found, expected = measure(scaled), measure(plain)
    assert found is not None
    assert expected is not None
    mine, theirs = (
        scale.apply(np.moveaxis(values, 1, -1))
        for scale, values in ((found, scaled), (expected, plain))
    )
    # Both were rounded to float32: 6e-8 of values up to seven deviations from zero.
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    assert mine.std() == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize("measure", [at_once, in_parts])
@pytest.mark.parametrize("value", [0.0, 1e-3, 101_325.0, -7e5 / 3])
def test_a_constant_is_centred_however_large(measure: Measure, value: float) -> None:
    """By the difference of two large squares it would vary, and rounding would be blown up."""
    x = np.full((9, 2, 50), value, np.float32)
    scale = measure(x)
    assert scale is not None
    found = scale.apply(np.moveaxis(x, 1, -1))
    assert np.abs(found).max() <= 1e-6 * abs(value)


@pytest.mark.parametrize("measure", [at_once, in_parts])
def test_a_small_change_of_a_large_value_is_seen(measure: Measure) -> None:
    """Air pressure in pascals changes by a hundredth of a thousandth: what float32 keeps of it."""
    x = (101_325 + drawn()).astype(np.float32)
    scale = measure(x)
    assert scale is not None
    exact = np.asarray(x, np.float64).std((0, 2))
    np.testing.assert_allclose(scale.deviation, exact, rtol=1e-9)  # all in double precision


def test_parts_with_holes_are_those_at_once() -> None:
    x = drawn().astype(np.float32)
    x[2, 0] = np.nan
    x[:4, 1] = np.nan
    whole, parts = at_once(x), in_parts(x)
    assert whole is not None
    assert parts is not None
    np.testing.assert_allclose(parts.mean, whole.mean, rtol=1e-9)  # in double precision
    np.testing.assert_allclose(parts.deviation, whole.deviation, rtol=1e-9)
    assert in_parts(np.full((9, 2, 50), np.nan)) is None
