"""Privacy accountant for Poisson sampling, in which every client takes part independently.

A round is (q, z): every client takes part with probability q, and the sum of the clipped messages
receives Gaussian noise with a standard deviation of z times the clipping bound. Neighbouring
datasets differ by the presence of one client. Every epsilon here is an upper bound: `pld` (privacy
loss distributions, rounded upwards on a grid) is nearly exact; `rdp` (Renyi divergences) is about
ten percent above it, and loose where epsilon is large.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from communis.core.errors import CommunisError
from communis.core.extras import require
from communis.exchange.privacy import gaussian
from communis.exchange.privacy.digits import upward

Kind = Literal["rdp", "pld"]
Round = tuple[float, float]  # (q, z)

ORDERS = (
    *(x / 4 for x in range(6, 24)),  # these matter where epsilon is large
    *range(6, 21),
    *(24, 28, 32, 40, 48, 56, 64, 80, 96, 128, 192, 256, 512, 1024),  # these where it is small
)
# Up to EXACT different rounds are composed as they are. With more, z is rounded down to a power of
# STEP, which raises epsilon by about two percent at most.
EXACT = 16
STEP = 1.02
FINE = 0.1  # width of the grid of privacy losses, relative to their deviation in one round
LEAST = 1e-3  # noise below this counts as none
MOST = 1e6  # noise above this counts as this much, which raises epsilon by next to nothing


def epsilon_of_rounds(rounds: Iterable[Round], delta: float, kind: Kind = "rdp") -> float:
    """Returns epsilon of all rounds together; infinite if one of them has practically no noise."""
    if not 0 < delta < 1:
        raise CommunisError(f"delta must be in (0, 1), got {delta}; 1e-5 is usual")
    counts = _grouped(rounds)
    if any(z < LEAST for _, z in counts):
        return math.inf
    if not counts:
        return 0.0
    with _excluded_orders_not_logged():
        return _pld(counts, delta) if kind == "pld" else _rdp(counts, delta)


def noise_for(
    epsilon: float,
    delta: float,
    q: float,
    rounds: int,
    kind: Kind = "rdp",
    weights: Sequence[float] = (),
) -> float:
    """Returns the least z, within one part in 10,000, with which the rounds cost at most epsilon.
    weights: their mean is 1; round t gets the noise z / sqrt(w_t), and with it about the share w_t
    of the budget."""
    if not 0 < epsilon < math.inf:
        raise CommunisError(f"epsilon must be positive and finite, got {epsilon}")
    if not 0 < q <= 1:
        raise CommunisError(f"q must be in (0, 1], got {q}")
    if rounds < 1 or (weights and len(weights) != rounds):
        raise CommunisError(
            f"rounds must be at least 1, and there must be one weight per round or none, got "
            f"{rounds} rounds and {len(weights)} weights"
        )
    if weights and not (min(weights) > 0 and abs(sum(weights) / rounds - 1) < 1e-6):
        raise CommunisError("weights of rounds must be positive and 1 on average")
    shares = weights or [1.0] * rounds

    @lru_cache
    def excess(log_z: float) -> float:
        z = math.exp(log_z)
        spent = epsilon_of_rounds(((q, z / math.sqrt(w)) for w in shares), delta, kind)
        return math.log(min(max(spent, 1e-300), 1e300) / epsilon)

    # The limit of many rounds, a Gaussian: a close start unless z is very small.
    start = max(0.3, q * math.sqrt(rounds) / gaussian.mu_of(epsilon, delta))
    return math.exp(_crossing(excess, math.log(start), 5e-5))


def split(z: float, sigma_b: float) -> float:
    """Returns the noise on updates if the number of updates below the bound is released too, with
    noise sigma_b, and both together must cost what z alone would (Andrew et al. 2021). One client
    changes that number, counted relative to one half, by one half."""
    if not (z > 0 and 2 * sigma_b > z):
        raise CommunisError(
            f"noise {z} on updates cannot spare any budget for a count with noise {sigma_b}: "
            f"the noise on the count must be above {upward(z / 2, 6)}, and both positive"
        )
    return 1 / math.sqrt(z**-2 - (2 * sigma_b) ** -2)


def _crossing(excess: Callable[[float], float], start: float, tolerance: float) -> float:
    """Returns a point near the zero of a decreasing function at which it is not positive. The
    function may have steps."""
    from scipy.optimize import brentq  # takes a second to import

    low = high = start
    step = 0.1
    while excess(high) > 0:
        low = high
        high += step
        step *= 2
    while excess(low) <= 0:
        high = low
        low -= step
        step *= 2
    zero = float(brentq(excess, low, high, xtol=tolerance))
    while excess(zero) > 0:
        zero += tolerance
    return zero


def _grouped(rounds: Iterable[Round]) -> Counter[Round]:
    """Returns how often each kind of round occurs, without rounds that cost nothing."""
    counts = Counter((float(q), float(z)) for q, z in rounds)
    for q, z in counts:
        if not (0 <= q <= 1 and z >= 0):
            raise CommunisError(
                f"a round must have q in [0, 1] and z of at least 0, got q = {q}, z = {z}"
            )
    noisy: Counter[Round] = Counter()
    for (q, z), n in counts.items():
        if q > 0 and z < math.inf:
            noisy[q, min(z, MOST)] += n
    return noisy if len(noisy) <= EXACT else _coarse(noisy)


def _coarse(counts: Counter[Round]) -> Counter[Round]:
    """Rounds noise down to powers of STEP, unless a round has practically none."""
    if any(z < LEAST for _, z in counts):
        return counts
    coarse: Counter[Round] = Counter()
    for (q, z), n in counts.items():
        coarse[q, STEP ** math.floor(math.log(z) / math.log(STEP) + 1e-9)] += n
    return coarse


def _rdp(counts: Counter[Round], delta: float) -> float:
    total = sum(n * _divergences(q, z) for (q, z), n in counts.items())
    return float(require("privacy").rdp.compute_epsilon(ORDERS, total, delta)[0])


@lru_cache(maxsize=4096)
def _divergences(q: float, z: float) -> npt.NDArray[np.float64]:
    """Returns the Renyi divergences of one round by order; infinite where the sum does not
    converge."""
    dp = require("privacy")
    ledger = dp.rdp.RdpAccountant(ORDERS, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    divergences: npt.NDArray[np.float64] = ledger.compose(_event(dp, q, z)).rdp
    return divergences


def _pld(counts: Counter[Round], delta: float) -> float:
    """Returns epsilon by privacy loss distributions. Rounding to the grid widens the distribution
    of every round a little. The grid is therefore fine relative to the losses of one round, but no
    finer than needed where losses are large."""
    dp = require("privacy")
    variance = sum(n * q**2 * math.expm1(min(z**-2, 50)) for (q, z), n in counts.items())
    mean = sum(n * q / (2 * z**2) for (q, z), n in counts.items())
    reach = max(1 / (2 * z**2) + 8 / z for _, z in counts)  # of one round
    fine = min(0.01, FINE * math.sqrt(variance / counts.total()))
    grid = max(fine, 1e-6 * mean, 2e-5 * reach)
    ledger = dp.pld.PLDAccountant(dp.NeighboringRelation.ADD_OR_REMOVE_ONE, grid)
    for (q, z), n in counts.items():
        ledger.compose(_event(dp, q, z), n)
    return float(ledger.get_epsilon(delta))


def _event(dp: Any, q: float, z: float) -> Any:
    return dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(z))


@contextmanager
def _excluded_orders_not_logged() -> Iterator[None]:
    """Suppresses the warnings of dp_accounting about orders that it excludes, or whose divergence
    rounding made negative: the bound holds without them."""
    log = logging.getLogger("absl")

    def keep(record: logging.LogRecord) -> bool:
        return "Excluding this order" not in record.msg and "Negative R" not in record.msg

    log.addFilter(keep)
    try:
        yield
    finally:
        log.removeFilter(keep)
