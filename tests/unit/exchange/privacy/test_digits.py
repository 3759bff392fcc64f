"""Numbers of privacy are never rounded to the flattering side."""

from __future__ import annotations

import math

import numpy as np
import pytest

from communis.exchange.privacy.digits import downward, upward


@pytest.mark.parametrize(
    ("value", "up", "down"),
    [
        (8.0, "8", "8"),
        (7.9999, "8", "7.99"),
        (7.999999999, "8", "7.99"),
        (8.0000000001, "8.01", "8"),
        (8.001, "8.01", "8"),
        (1.1, "1.1", "1.1"),  # 1.1 / 0.01 is 110.00000000000001 in floats
        (0.29, "0.29", "0.29"),  # and 0.29 / 0.01 is 28.999999999999996
        (0.12345, "0.124", "0.123"),
        (9.995, "10", "9.99"),
        (999.5, "1000", "999"),
        (206.2, "207", "206"),
        (12345.0, "12400", "12300"),
        (2.0000001e-7, "2.01e-07", "2e-07"),
        (0.0, "0", "0"),
        (math.inf, "inf", "inf"),
        (math.nan, "nan", "nan"),
    ],
)
def test_awkward_values(value: float, up: str, down: str) -> None:
    assert (upward(value), downward(value)) == (up, down)


def test_more_digits() -> None:
    assert (upward(2.422402, 4), downward(2.422402, 4)) == ("2.423", "2.422")
    assert upward(np.float64(0.5), 2) == "0.5"


@pytest.mark.parametrize("digits", [2, 3, 4])
def test_never_on_the_wrong_side_and_never_far_off(digits: int) -> None:
    values = 10.0 ** np.random.default_rng(0).uniform(-8, 8, 2000)
    for value in [*values, *values.round(2)]:
        low, high = float(downward(value, digits)), float(upward(value, digits))
        assert low <= value <= high
        assert high - low <= value * 10.0 ** (1 - digits) * (1 + 1e-9)  # one step, but for floats
