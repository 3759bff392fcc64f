"""Rounding of privacy parameters for display.

A guarantee must not look better than it is. Upper bounds on the cost of a run (epsilon, mu) and the
noise that a guarantee requires (sigma, z) are rounded up; lower bounds from an audit are rounded
down.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal


def upward(value: float, digits: int = 3) -> str:
    """Returns the least number of `digits` digits that is not below the value."""
    return _short(value, Context(prec=digits, rounding=ROUND_CEILING))


def downward(value: float, digits: int = 3) -> str:
    """Returns the largest number of `digits` digits that is not above the value."""
    return _short(value, Context(prec=digits, rounding=ROUND_FLOOR))


def _short(value: float, context: Context) -> str:
    if not math.isfinite(value):
        return f"{value:g}"
    written = Decimal(repr(float(value)))  # 1.1 is 1.1, although the float is a little above
    return f"{float(context.plus(written)):.{max(6, context.prec)}g}"
