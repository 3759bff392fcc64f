"""What right guesses prove: lower bounds on epsilon from one run. Steinke, Nasr and Jagielski,
NeurIPS 2023, Theorem 5.2. https://arxiv.org/abs/2305.08846

Every canary has a fair coin; changing one coin is changing one client. Whoever sees what a private
run releases guesses some of the coins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from communis.core.arrays import Array
from communis.exchange.privacy import gaussian

SHARES = (1.0, 0.5, 0.2, 0.1)  # of the canaries that are guessed, fixed before anything is seen
LARGE = 50.0  # no audit of fewer than 1e20 canaries gets there


@dataclass(frozen=True)
class Bound:
    """What an audit found. Its bounds hold together, with the audit's confidence."""

    canaries: int
    guesses: int  # behind `epsilon`: the most certain ones
    right: int
    epsilon: float  # the mechanism is not (epsilon, delta)-DP, whatever it does
    gaussian: float | None  # nor is it, if it composes Gaussians; None: guesses are not independent
    highest: float  # what `epsilon` had been with all guesses right


def p_value(epsilon: float, guesses: int, right: int, canaries: int, delta: float) -> float:
    """How probable so many right guesses are at most, if the mechanism is (epsilon, delta)-DP.

    Without delta every guess is right with probability q = e^eps / (1 + e^eps) at most, given all
    the others: the right ones are at most W ~ Binomial(r, q). Events of probability delta, two for
    each of m coins, add F >= 0 right ones with E[F] <= 2 m delta. The worst F is i with probability
    2 m delta / i and else 0, so

        P[right >= v] <= P[W >= v] + 2 m delta max_i P[v - i <= W < v] / i.
    """
    from scipy.special import bdtrc, expit  # takes half a second to import

    if not right:
        return 1.0
    i = np.arange(1, right + 1)
    q = expit(epsilon)
    tail = float(bdtrc(right - 1, guesses, q))  # P[W >= v]
    worst = float(((bdtrc(right - i - 1, guesses, q) - tail) / i).max())
    return min(1.0, tail + 2 * canaries * delta * worst)


@lru_cache(maxsize=1024)
def epsilon_bound(
    guesses: int, right: int, canaries: int, delta: float, confidence: float = 0.95
) -> float:
    """The epsilon up to which so many right guesses refute (epsilon, delta)-DP; 0 if none."""
    from scipy.optimize import brentq

    def unlikely(epsilon: float) -> float:
        return p_value(epsilon, guesses, right, canaries, delta) - (1 - confidence)

    if not 0 <= right <= guesses <= canaries:
        raise ValueError(f"{right} right of {guesses} guesses about {canaries} canaries")
    return 0.0 if unlikely(0.0) >= 0 else float(brentq(unlikely, 0.0, LARGE))


def mu_bound(guesses: int, right: int, confidence: float = 0.95) -> float:
    """The mu up to which so many right guesses refute mu-GDP; 0 if none.

    A fair coin is guessed with probability Phi(mu / 2) at most (Dong, Roth and Su 2022), so a lower
    bound on that probability (Clopper and Pearson) is one on mu. Guesses must be independent: those
    of clients that are noised each by itself are."""
    from scipy.special import betaincinv, ndtri

    if not right:
        return 0.0
    least = betaincinv(right, guesses - right + 1, 1 - confidence)
    return max(0.0, 2 * float(ndtri(least)))


def judge(
    scores: Array,
    coins: Array,
    delta: float,
    confidence: float = 0.95,
    shares: Sequence[float] = SHARES,
    independent: bool = True,
) -> Bound:
    """scores: (m,), the more positive the surer that the coin, +1 or -1, is +1.

    The best of the bounds for all `shares` of most certain guesses. Each bound has its part of the
    error, so that taking the best is no cheating. independent: see `mu_bound`."""
    order = np.argsort(-np.abs(scores), kind="stable")
    sure = np.where(scores >= 0, 1, -1)[order] == coins[order]
    m, error = len(scores), (1 - confidence) / (2 if independent else 1)
    each = 1 - error / len(shares)
    counts = sorted({max(1, math.ceil(share * m)) for share in shares})
    found = [(epsilon_bound(r, int(sure[:r].sum()), m, delta, each), r) for r in counts]
    epsilon, r = max(found)
    mu = mu_bound(m, int(sure.sum()), 1 - error)
    highest = max(epsilon_bound(n, n, m, delta, each) for n in counts)
    if_gaussian = gaussian.epsilon_of(mu, delta) if independent else None
    return Bound(m, r, int(sure[:r].sum()), epsilon, if_gaussian, highest)
