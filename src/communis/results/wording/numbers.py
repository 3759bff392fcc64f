"""Numbers as text: estimates with their spread, quantities of any size, names of metrics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from communis.results.correlation import Correlation
from communis.results.estimate import FEWEST, TOO_FEW, Estimate

JOINT = "\N{NO-BREAK SPACE}"  # between a number and its sign
HUGE = 1e9  # larger quantities are written with an exponent


def span(numbers: Sequence[int]) -> str:
    """The lowest and the highest number, or the one number that there is."""
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low} to {high}"


def plain(metric: str) -> str:
    """A metric's name for people."""
    name, _, view = metric.partition("@")
    return f"{name.replace('_', ' ')} ({view})" if view else name.replace("_", " ")


def number(estimate: Estimate, digits: int = 3) -> str:
    """A mean with its spread."""
    if estimate.diverged:
        return f"diverged in {estimate.diverged} of {estimate.seeds}"
    if not math.isfinite(estimate.mean):
        return "-"
    spread = f" ± {estimate.spread:.{digits}f}" if math.isfinite(estimate.spread) else ""
    return f"{estimate.mean:.{digits}f}{spread}"


def sized(value: float) -> str:
    """Three digits of a quantity of any size."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if 100 <= abs(value) < HUGE else f"{value:.3g}"


def quantity(estimate: Estimate) -> str:
    """A mean of any size with its spread, to the mean's last digit."""
    if not math.isfinite(estimate.mean) or not math.isfinite(estimate.spread):
        return sized(estimate.mean)
    if not 1e-3 <= abs(estimate.mean) < HUGE:
        return f"{sized(estimate.mean)} ± {sized(estimate.spread)}"
    places = max(0, 2 - math.floor(math.log10(abs(estimate.mean))))
    return f"{estimate.mean:,.{places}f} ± {estimate.spread:,.{places}f}"


def versus(difference: Estimate, verdict: str) -> str:
    """The paired difference to the best method, in words; without an interval where seeds are too
    few for one that says anything."""
    if not verdict:
        return "best" if difference.seeds >= FEWEST else "best mean"
    if not math.isfinite(difference.mean):
        return verdict
    if verdict == TOO_FEW or not math.isfinite(difference.half_width):
        return f"{difference.mean:+.3f} ({verdict})"
    return f"{difference.mean:+.3f} ± {difference.half_width:.3f}, {verdict}"


def kilobytes(count: float) -> str:
    return f"{count / 1000:,.1f}"


def count(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def ratio(value: float) -> str:
    return f"{value:.2f} x" if math.isfinite(value) else "-"


def correlated(correlation: Correlation) -> list[str]:
    """rho and p."""
    if not math.isfinite(correlation.rho):
        return ["-", "-"]
    p = (
        "-"
        if math.isnan(correlation.p)
        else "< 0.001"
        if correlation.p < 0.001
        else f"{correlation.p:.3f}"
    )
    return [f"{correlation.rho:+.2f}", p]


def signed(change: Estimate) -> str:
    """A change, with ~ where its interval holds zero, and with ? where seeds are too few."""
    text = f"+{number(change)}" if change.mean >= 0 else number(change)
    if math.isfinite(change.mean) and change.seeds < FEWEST:
        return f"{text}{JOINT}?"
    return f"{text}{JOINT}~" if abs(change.mean) <= change.half_width else text
