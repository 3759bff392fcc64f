"""Gaussian differential privacy: the Gaussian mechanism described by one number, mu.

A query of sensitivity Delta with Gaussian noise of standard deviation sigma is mu-GDP with mu =
Delta / sigma: telling neighbouring datasets apart is at least as hard as telling N(0, 1) from
N(mu, 1) by one draw, and exactly as hard where the datasets differ by Delta. Composition adds mu^2
over rounds; the total is converted into epsilon and delta once, at the end (Balle and Wang 2018;
Dong, Roth and Su 2022).

The conversion is an equality. The sum of mu^2 is an upper bound even if a round's message depends
on earlier rounds, and no smaller bound holds for all such runs: it is attained if neighbouring
datasets differ by Delta in every round.

Delta is the largest excess of a probability over e^epsilon times that of a neighbour. It is not the
probability that the privacy loss exceeds epsilon, which is larger: Phi(mu/2 - epsilon/mu).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache

from communis.core.errors import CommunisError


def delta_of(mu: float, epsilon: float) -> float:
    """Returns delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)."""
    _check(mu=mu, epsilon=epsilon)
    return math.exp(_log_delta(mu, epsilon))


@lru_cache(maxsize=4096)  # clients that took part equally often have the same mu
def epsilon_of(mu: float, delta: float) -> float:
    """Returns the least epsilon for a delta; infinite if there is practically no noise."""
    _check(mu=mu, delta=delta)
    if mu > 1e6:  # an epsilon of 5e11
        return math.inf
    target = math.log(delta)
    if _log_delta(mu, 0.0) <= target:
        return 0.0
    enough = mu * (mu / 2 + math.sqrt(-2 * target))  # delta <= exp(-(epsilon/mu - mu/2)^2 / 2)
    return _root(lambda epsilon: _log_delta(mu, epsilon) - target, 0.0, enough)


def mu_of(epsilon: float, delta: float) -> float:
    """Returns the largest mu that satisfies (epsilon, delta)-DP; sigma = Delta / mu is then the
    least noise that does."""
    _check(epsilon=epsilon, delta=delta)
    target = math.log(delta)
    tail = math.sqrt(-2 * target)
    by_tail = 2 * epsilon / (tail + math.sqrt(tail**2 + 2 * epsilon))  # the bound above, for mu
    low = max(by_tail, delta * math.sqrt(2 * math.pi))  # delta is at most mu / sqrt(2 pi)
    high = 2 * low
    while _log_delta(high, epsilon) <= target:
        high *= 2
    return _root(lambda mu: _log_delta(mu, epsilon) - target, low / 2, high)


def composed(mus: Iterable[float]) -> float:
    """Returns the mu of a composition, an upper bound: the root of the sum of squares."""
    return math.hypot(*mus)


def classical_sigma(clip: float, epsilon: float, delta: float) -> float:
    """Returns the textbook's noise for sensitivity `clip`. It is proved for epsilon up to 1. Far
    above that it is too small (with delta = 1e-5, from an epsilon of about 9)."""
    _check(epsilon=epsilon, delta=delta)
    if not (clip > 0 and epsilon > 0):
        raise CommunisError(
            f"clip and epsilon must be positive, got clip = {clip}, epsilon = {epsilon}"
        )
    return clip * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def _log_delta(mu: float, epsilon: float) -> float:
    """Returns log delta without computing e^epsilon, which cancels against the tails in erfcx(x) =
    e^(x^2) erfc(x)."""
    from scipy.special import erfcx, log_ndtr  # takes half a second to import

    if mu == 0 or math.isinf(mu):
        return 0.0 if mu else -math.inf
    near = epsilon / mu - mu / 2
    far = epsilon / mu + mu / 2
    ratio = float(erfcx(far / math.sqrt(2)) / erfcx(near / math.sqrt(2)))
    return float(log_ndtr(-near)) + math.log1p(-ratio) if ratio < 1 else -math.inf


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    from scipy.optimize import brentq

    return float(brentq(function, low, high, xtol=1e-13, rtol=1e-13))


def _check(*, mu: float = 0.0, epsilon: float = 0.0, delta: float = 0.5) -> None:
    if not mu >= 0:
        raise CommunisError(f"mu must not be negative, got {mu}")
    if not 0 <= epsilon < math.inf:
        raise CommunisError(f"epsilon must be finite and not negative, got {epsilon}")
    if not 0 < delta < 1:
        raise CommunisError(f"delta must be in (0, 1), got {delta}; 1e-5 is usual")
