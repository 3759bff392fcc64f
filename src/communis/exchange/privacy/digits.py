"""Numbers of privacy in a few digits, for people.

A promise must not look better than it is, and neither must a proof: what a run may cost (epsilon,
mu) and the noise that a promise takes (sigma, z) are rounded up, what an audit proves at least is
rounded down.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal


def upward(value: float, digits: int = 3) -> str:
    """The least number of so many digits that is not below the value."""
    return _short(value, Context(prec=digits, rounding=ROUND_CEILING))


def downward(value: float, digits: int = 3) -> str:
    """The largest number of so many digits that is not above the value."""
    return _short(value, Context(prec=digits, rounding=ROUND_FLOOR))


def _short(value: float, context: Context) -> str:
    if not math.isfinite(value):
        return f"{value:g}"
    written = Decimal(repr(float(value)))  # 1.1 is 1.1, although the float is a little above
    return f"{float(context.plus(written)):.{max(6, context.prec)}g}"
