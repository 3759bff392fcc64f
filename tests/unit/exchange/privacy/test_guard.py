"""Guards: clipping, noise, and what a message looks like when it leaves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from communis import CommunisError
from communis.exchange.privacy import gaussian
from communis.exchange.privacy.guard import Block, Guard, clip, guard_of
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.privacy.spending import Spending


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def silent(bound: float) -> Guard:
    """So little noise that it cannot be seen."""
    return Guard({"w": Block(bound, 1e-30)})


def test_clipping_keeps_the_direction_and_bounds_the_length() -> None:
    change = {"w/a": torch.tensor([3.0, 0.0]), "w/b": torch.tensor([[4.0]])}  # of length 5
    made, shrunk = clip(change, 1.0)
    assert shrunk
    torch.testing.assert_close(made["w/a"], torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(made["w/b"], torch.tensor([[0.8]]))
    made, shrunk = clip(change, 5.0)
    assert not shrunk
    assert torch.equal(made["w/a"], change["w/a"])


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_no_change(value: float) -> None:
    made, shrunk = clip({"w/a": torch.tensor([value, 1.0])}, 1.0)
    assert shrunk
    assert torch.equal(made["w/a"], torch.zeros(2))
    assert not clip({"w/a": torch.zeros(2)}, 1.0)[1]


def test_a_guard_clips_the_change_where_something_was_received() -> None:
    up = {"w/a": torch.tensor([13.0, 10.0]), "w/b": torch.tensor([0.0]), "n": torch.tensor(7)}
    down = {"w/a": torch.tensor([10.0, 10.0]), "w/b": torch.tensor([4.0])}
    sent, clipped = silent(1.0).protect(up, down, {}, 1, rng())
    torch.testing.assert_close(sent["w/a"], torch.tensor([10.6, 10.0]))
    torch.testing.assert_close(sent["w/b"], torch.tensor([3.2]))
    assert sent["n"] is up["n"]  # whole numbers leave as they are
    assert clipped == 1


def test_a_guard_clips_the_value_where_nothing_alike_was_received() -> None:
    up = {"w/a": torch.tensor([0.0, 2.0])}
    for down in ({}, {"w/a": torch.tensor([5.0])}):
        sent, _ = silent(1.0).protect(up, down, {}, 1, rng())
        torch.testing.assert_close(sent["w/a"], torch.tensor([0.0, 1.0]))


def test_every_field_has_its_own_bound_and_noise() -> None:
    guard = Guard({"w": Block(1.0, 0.5), "p": Block(2.0, 3.0)})
    up = {"w/a": torch.zeros(20_000), "p": torch.zeros(20_000), "open": torch.ones(3)}
    sent, _ = guard.protect(up, {}, {}, 1, rng())
    assert float(sent["w/a"].std()) == pytest.approx(0.5, rel=0.03)
    assert float(sent["p"].std()) == pytest.approx(3.0, rel=0.03)
    assert torch.equal(sent["open"], up["open"])
    assert guard.mu(1) == pytest.approx(math.hypot(2 / 0.5, 4 / 3))


def drawn(kappa: float, basis: Tensor, columns: int = 40_000) -> Tensor:
    """(3, columns): the noise on a matrix."""
    guard = Guard({"w": Block(1.0, 1.5)}, kappa)
    up = {"w/a": torch.zeros(3, columns)}
    return guard.protect(up, {}, {"a": basis}, 1, rng())[0]["w/a"]


def test_the_covariance_of_subspace_noise() -> None:
    """Of every column: sigma^2 along U, kappa^2 sigma^2 across it. Columns are independent, so a
    matrix (m, d) has r d eigenvalues of the former and (m - r) d of the latter kind."""
    basis = torch.linalg.qr(torch.tensor([[1.0], [2.0], [-1.0]]))[0]
    noise = drawn(4.0, basis).double()
    values, vectors = torch.linalg.eigh(noise @ noise.T / noise.shape[1])
    assert values.tolist() == pytest.approx([2.25, 36.0, 36.0], rel=0.03)
    assert abs(float(basis[:, 0].double() @ vectors[:, 0])) > 0.999
    neighbours = noise[:, ::2] @ noise[:, 1::2].T / (noise.shape[1] / 2)
    assert float(neighbours.abs().max()) < 1.0  # of 36


def test_kappa_1_is_isotropic_bit_for_bit() -> None:
    assert torch.equal(drawn(1.0, torch.eye(3)[:, :1], 5), drawn(1.0, torch.eye(3)[:, 1:], 5))
    noise = drawn(1.0, torch.eye(3)[:, :1]).double()
    covariance = noise @ noise.T / noise.shape[1]
    five_errors = 5 * 2.25 * math.sqrt(2 / noise.shape[1])  # standard ones, of a variance
    torch.testing.assert_close(covariance, 2.25 * torch.eye(3).double(), atol=five_errors, rtol=0)


def test_kappa_never_reaches_the_core_of_an_update() -> None:
    """U^T (1 - P) = 0: UMEDA's Table 7 cannot be an effect of kappa on what Diff-GNO sees."""
    basis = torch.linalg.qr(torch.from_numpy(rng().standard_normal((8, 3))))[0]
    up = {"w/a": torch.zeros(8, 8, dtype=torch.float64)}
    cores = []
    for kappa in (1.0, 4.0, 8.0):
        guard = Guard({"w": Block(1.0, 1.0)}, kappa)
        sent, _ = guard.protect(up, {}, {"a": basis}, 1, rng())
        cores.append(basis.T @ sent["w/a"])
    for core in cores[1:]:  # messages are rounded to single precision: 6e-8 of up to 8 times 4
        torch.testing.assert_close(cores[0], core, atol=1e-5, rtol=0)


def test_a_stretched_basis_does_not_take_the_noise_away() -> None:
    """With U sqrt(kappa / (kappa - 1)) in place of U the noise along U would vanish."""
    basis = torch.tensor([[1.0], [0.0], [0.0]]) * math.sqrt(4 / 3)
    assert float(drawn(4.0, basis)[0].std()) == pytest.approx(1.5, rel=0.03)


def test_a_noised_number_does_not_tell_what_it_was_made_of() -> None:
    """Noise in single precision would leave, of all candidates in double precision, only the true
    one: for it alone the noise is a number of single precision."""
    guard, source = Guard({"a": Block(1.0, 17.8)}), rng()
    found = 0
    for k in range(100):
        sent, _ = guard.protect({"a": torch.tensor(k / 137).double()}, {}, {}, 1, source)
        rest = [float(sent["a"]) - j / 137 for j in range(137)]
        fits = [j for j, x in enumerate(rest) if x / 17.8 == float(np.float32(x / 17.8))]
        found += fits == [k]
    assert found == 0


def test_less_noise_in_any_direction_is_what_counts() -> None:
    block = {"w": Block(1.0, 2.0)}
    assert Guard(block, 4.0).mu(1) == Guard(block).mu(1) == 1.0
    assert Guard(block, 0.5).mu(1) == 2.0


def test_late_spending_averages_to_one_and_grows() -> None:
    weights = [Spending(50).weight(round) for round in range(1, 51)]
    assert sum(weights) == pytest.approx(50)
    assert weights == sorted(weights)
    assert (weights[0], weights[-1]) == pytest.approx((0.51, 1.49))
    assert Spending().weight(7) == 1
    guard = Guard({"w": Block(1.0, 2.0)}, spending=Spending(50))
    assert sum(guard.mu(r) ** 2 for r in range(1, 51)) == pytest.approx(50)
    up = {"w/a": torch.zeros(50_000)}
    early, late = (guard.protect(up, {}, {}, r, rng())[0]["w/a"].std() for r in (1, 50))
    assert float(early / late) == pytest.approx(math.sqrt(1.49 / 0.51), rel=0.02)


def test_local_noise_is_calibrated_for_the_whole_message_and_all_rounds() -> None:
    config = PrivacyConfig(mode="local", epsilon=2.0, clips={"w": 3.0})
    guard = guard_of(config, ["w", "p"], 100, 0.4)
    assert guard is not None
    total = math.sqrt(40) * guard.mu(1)  # 40 rounds are expected of a client
    assert gaussian.epsilon_of(total, 1e-5) == pytest.approx(2.0)
    assert guard.blocks["w"].sigma == pytest.approx(3 * guard.blocks["p"].sigma)


def test_given_noise_is_sigma_over_sensitivity() -> None:
    guard = guard_of(PrivacyConfig(mode="local", noise=4.0, clip=2.0), ["w"], 10, 1.0)
    assert guard is not None
    assert guard.blocks["w"].sigma == 16.0  # 4 * (2 C)
    assert guard.mu(1) == 0.25


def test_the_papers_calibration() -> None:
    """Equation 9: C = 1, epsilon 2, delta 1e-5 gives 2.42; under replacement that is 3.51."""
    guard = guard_of(PrivacyConfig(mode="paper", epsilon=2.0), ["operator"], 10, 1.0)
    assert guard is not None
    assert guard.blocks["operator"].sigma == pytest.approx(2.422403, rel=1e-6)
    assert guard.kappa == 4
    assert gaussian.epsilon_of(guard.mu(1), 1e-5) == pytest.approx(3.511178, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"mode": "local"}, "epsilon and noise must be positive"),
        ({"mode": "local", "epsilon": -1.0}, "epsilon and noise must be positive"),
        ({"mode": "local", "noise": 1e-320}, "noise = 1e-320 is practically none"),
        ({"mode": "central", "noise": -1.0}, "epsilon and noise must be positive"),
        ({"mode": "local", "epsilon": 1.0, "delta": 0.0}, "delta must be in"),
        ({"mode": "local", "epsilon": 1.0, "delta": 1.0}, "delta must be in"),
        ({"mode": "local", "epsilon": 1.0, "clip": 0.0}, "clip must be positive"),
        ({"mode": "local", "epsilon": 1.0, "clips": {"w": -1.0}}, "w must be positive"),
        (
            {"mode": "local", "epsilon": 1.0, "mechanism": "subspace", "kappa": 0.5},
            "less noise in any direction",
        ),
        ({"mode": "local", "epsilon": 1.0, "adaptive": True}, "only with central"),
        ({"mode": "central", "epsilon": 1.0, "quantile": 2.0}, "quantile must be in"),
        ({"mode": "central", "epsilon": 1.0, "participations": 3}, "only with local"),
        ({"epsilon": 1.0}, "has no meaning with mode = 'none'"),
        ({"mode": "secret"}, "mode must be none, paper, local or central"),
    ],
)
def test_settings_that_promise_nothing_are_refused(settings: dict, text: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(CommunisError, match=text):
        PrivacyConfig(**settings)


def test_delta_must_stay_below_one_client() -> None:
    with pytest.raises(CommunisError, match="10 clients: from 1/10 on"):
        PrivacyConfig(mode="local", epsilon=1.0, delta=0.1).check(10)
    with pytest.raises(CommunisError, match=r"choose delta below 0\.16$"):  # 1/6, rounded down
        PrivacyConfig(mode="local", epsilon=1.0, delta=0.17).check(6)
    PrivacyConfig(mode="local", epsilon=1.0, delta=0.09).check(10)
    PrivacyConfig().check(10)


def test_a_bound_for_a_field_that_is_not_there() -> None:
    config = PrivacyConfig(mode="local", epsilon=1.0, clips={"v": 1.0})
    with pytest.raises(CommunisError, match=r"clips\.v: the message has no such field; it has w"):
        guard_of(config, ["w"], 1, 1.0)
    assert guard_of(config, [], 1, 1.0) is None  # nothing leaves
