"""Lower bounds on epsilon from right guesses in one run. Steinke, Nasr and Jagielski, NeurIPS 2023,
Theorem 5.2. https://arxiv.org/abs/2305.08846

Every canary has a fair coin; to change one coin is to change one client. The adversary sees what a
private run releases, and guesses some of the coins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from communis.core.arrays import Array
from communis.exchange.privacy import gaussian

SHARES = (1.0, 0.5, 0.2, 0.1)  # of canaries that are guessed; fixed before a run is looked at
LARGE = 50.0  # an epsilon that no audit of fewer than 1e20 canaries proves


@dataclass(frozen=True)
class Bound:
    """The bounds that an audit proves. They hold together, with the confidence of the audit."""

    canaries: int
    guesses: int  # behind `epsilon`: the most certain ones
    right: int
    epsilon: float  # no mechanism that is (epsilon, delta)-DP gives so many right guesses
    gaussian: float | None  # the same of Gaussian mechanisms; None: guesses are not independent
    highest: float  # what `epsilon` would be with all guesses right


def p_value(epsilon: float, guesses: int, right: int, canaries: int, delta: float) -> float:
    """The highest probability of so many right guesses, if the mechanism is (epsilon, delta)-DP.

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
    """The best of the bounds for all `shares` of the most certain guesses. Each bound has its part
    of the error, so that the best one still has the confidence.

    scores: (m,), positive where the coin is guessed to be +1, else -1; the larger, the surer.
    independent: see `mu_bound`."""
    surest_first = np.argsort(-np.abs(scores), kind="stable")
    guessed = np.where(scores >= 0, 1, -1)
    right = guessed[surest_first] == coins[surest_first]
    canaries = len(scores)
    error = (1 - confidence) / (2 if independent else 1)
    each = 1 - error / len(shares)
    counts = sorted({max(1, math.ceil(share * canaries)) for share in shares})
    bounds = []
    for guesses in counts:
        of_these = int(right[:guesses].sum())
        bounds.append((epsilon_bound(guesses, of_these, canaries, delta, each), guesses))
    epsilon, guesses = max(bounds)
    mu = mu_bound(canaries, int(right.sum()), 1 - error)
    return Bound(
        canaries=canaries,
        guesses=guesses,
        right=int(right[:guesses].sum()),
        epsilon=epsilon,
        gaussian=gaussian.epsilon_of(mu, delta) if independent else None,
        highest=max(epsilon_bound(count, count, canaries, delta, each) for count in counts),
    )
