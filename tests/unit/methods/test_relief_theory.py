"""What RELIEF's mathematics says of cohort-wise and plain means and of the smoothed divergence,
without any training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from communis import Card, Replies, State
from communis.core.replies import uniform
from communis.methods.fedavg import Up
from communis.methods.relief import Relief, Server

N = 8  # clients
COHORT = 3  # clients that have the sensor, |C|
Q = COHORT / N
PATH = "fusion.blocks.mag.weight"


def replies(sent: dict[int, torch.Tensor]) -> Replies[State]:
    """What clients sent at one path; the others lack it."""
    cards = [Card(i, ("mag",), {PATH: (4, 6)}, 10, {"mag": 10}, {}) for i in range(N)]
    return Replies([(c, State({PATH: sent[c.id]} if c.id in sent else {})) for c in cards])


def test_zeros_shrink_the_mean_of_the_cohort() -> None:
    """Check 2: with exact zeros from the others, plain mean = |C|/N of the cohort's mean."""
    rng = np.random.default_rng(7)
    updates = torch.from_numpy(rng.standard_normal((COHORT, 4, 6), dtype=np.float32)) / 10
    own = {i: updates[i] for i in range(COHORT)}
    cohort = replies(own).mean(lambda up: up, by=uniform)[PATH]
    plain = replies({i: own.get(i, torch.zeros(4, 6)) for i in range(N)})
    torch.testing.assert_close(
        plain.mean(lambda up: up, by=uniform)[PATH], Q * cohort, rtol=0, atol=1e-7
    )
    torch.testing.assert_close(cohort, updates.mean(0), rtol=0, atol=1e-7)


def errors(g: float, s: float, spread: float = 0.0, trials: int = 6000) -> tuple[float, float]:
    """Mean squared errors of the plain and of the cohort's mean, where the cohort's mean gradient
    has the norm g, each client's noise the norm s (root mean square), and the clients' own
    gradients lie `spread` apart around their mean."""
    rng = np.random.default_rng(11)
    size = 30
    direction = rng.standard_normal(size)
    centre = g * direction / np.linalg.norm(direction)
    apart = rng.standard_normal((COHORT, size))
    true = centre + spread * (apart - apart.mean(0))
    noise = rng.standard_normal((trials, COHORT, size)) * s / np.sqrt(size)
    measured = np.zeros((trials, N, size))  # those without the sensor send zeros
    measured[:, :COHORT] = true + noise
    plain, cohort = measured.mean(1), measured[:, :COHORT].mean(1)
    return (
        float(((plain - centre) ** 2).sum(1).mean()),
        float(((cohort - centre) ** 2).sum(1).mean()),
    )


@pytest.mark.parametrize(("g", "s"), [(1.0, 1.0), (0.2, 1.5), (2.0, 0.5), (0.0, 1.0)])
@pytest.mark.parametrize("spread", [0.0, 0.7])
def test_errors_of_both_means(g: float, s: float, spread: float) -> None:
    """Check 3: (1-q)^2 |g|^2 + |C| s^2 / N^2 against s^2 / |C|. How far the cohort's clients differ
    among themselves enters neither, as all of them take part."""
    plain, cohort = errors(g, s, spread)
    assert plain == pytest.approx((1 - Q) ** 2 * g**2 + COHORT * s**2 / N**2, rel=0.03)
    assert cohort == pytest.approx(s**2 / COHORT, rel=0.03)


def test_neither_mean_is_better_everywhere() -> None:
    """Check 3: the plain mean is a shrunk estimate. It wins while the signal is weak, up to
    |g|^2 = (s^2/|C|)(1+q)/(1-q), which is 2.2 of the noise in the cohort's mean at q = 3/8."""
    factor = (1 + Q) / (1 - Q)
    assert factor == pytest.approx(2.2)
    noise = 1 / COHORT  # s^2/|C| with s = 1
    plain, cohort = errors(np.sqrt(factor * noise), 1.0)
    assert plain == pytest.approx(cohort, rel=0.03)
    plain, cohort = errors(np.sqrt(0.7 * factor * noise), 1.0)
    assert plain < 0.9 * cohort
    plain, cohort = errors(np.sqrt(1.4 * factor * noise), 1.0)
    assert cohort < 0.9 * plain


@pytest.mark.parametrize("gamma", [0.9, 0.5, 0.1])
def test_smoothed_divergence_lags_behind_a_drift(gamma: float) -> None:
    """Check 4: d grows by delta in every round. Begun at d itself, dbar is behind by
    delta (1-gamma)/gamma (1 - (1-gamma)^r) after r rounds more: 0.11 delta at the paper's 0.9, and
    9 delta at 0.1, in the end."""
    delta, path, group = 0.25, "head.out.bias", "head.out"
    method = Relief(gamma=gamma)
    cards = [Card(i, ("mag",), {path: (1,)}, 10, {"mag": 10}, {}) for i in range(2)]
    server = Server(State({path: torch.zeros(1)}), State(), torch.ones(2, dtype=torch.int64), 0)
    for r in range(150):
        d = delta * (r + 1)
        far = torch.tensor([d], dtype=torch.float64).sqrt()  # two at +far and -far: d is far^2
        sent = [Up(w=State({path: far * side})) for side in (1, -1)]
        server = method.aggregate(server, Replies(list(zip(cards, sent, strict=True))))
        lag = d - float(server.dbar[group])
        expected = delta * (1 - gamma) / gamma * (1 - (1 - gamma) ** r)
        assert lag == pytest.approx(expected, abs=1e-9)
    assert lag == pytest.approx(delta * (1 - gamma) / gamma, rel=1e-5)
