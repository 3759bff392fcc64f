"""The score network: what it is trained for, what it learns, that it can be sent and resumed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from communis.core.state import State
from communis.exchange import wire
from communis.methods.parts.diffusion import score
from communis.methods.parts.diffusion.ve import Schedule
from tests.unit.methods.parts.diffusion.clouds import generator

SCHEDULE = Schedule()


def learned(points: Tensor, steps: int, psi: State | None = None, lr: float = 3e-3) -> State:
    training = score.Training(score.uniform_loss, steps, lr, batch=128, settle=True)
    begun = psi or score.start(points.shape[1], generator(), width=64)
    weights = torch.ones(len(points))
    return score.trained(begun, training, SCHEDULE, points, weights, generator(1))


def test_a_new_network_is_silent_or_not() -> None:
    x, t = torch.randn(5, 6, generator=generator()), torch.rand(5, generator=generator())
    psi = score.start(6, generator(), width=16)
    assert torch.equal(score.output(psi, x, t), torch.zeros(5, 6))
    loud = score.start(6, generator(), width=16, silent=False)
    assert float(score.output(loud, x, t).abs().min()) > 0
    assert torch.equal(psi["0.weight"], loud["0.weight"])


def test_a_silent_network_knows_the_score_of_a_unit_gaussian() -> None:
    """-x / (1 + sigma^2): all that is left to learn is how the points differ from one."""
    x, t = torch.randn(5, 6, generator=generator()), torch.rand(5, generator=generator())
    psi = score.start(6, generator(), width=16)
    expected = -x / (1 + SCHEDULE.sigma(t)[:, None].square())
    found = score.score(psi, SCHEDULE, x, t)
    sigma = SCHEDULE.sigma(t)[:, None]
    assert torch.allclose(found * sigma, expected * sigma, atol=1e-4)


def test_the_target_of_score_matching() -> None:
    """The literal loss is zero for a network whose output is -noise / sigma."""
    x0, noise = (torch.randn(1, 6, generator=generator(i)) for i in range(2))
    t = torch.tensor([0.4])
    psi = score.start(6, generator(), width=16)
    sigma = SCHEDULE.sigma(t)
    length = float((noise / sigma).square().sum())
    assert float(score.literal_loss(psi, SCHEDULE, x0, t, noise)) == pytest.approx(length)
    perfect = psi | {"2.bias": (-noise / sigma)[0]}
    assert float(score.literal_loss(perfect, SCHEDULE, x0, t, noise)) == pytest.approx(0, abs=1e-6)


def test_the_preconditioned_loss_is_a_weighted_error_of_the_denoised() -> None:
    """By (1 + sigma^2) / sigma^2, so that it counts alike at all times."""
    psi = score.start(6, generator(), width=16, silent=False)
    x0, noise = (torch.randn(9, 6, generator=generator(i)) for i in range(2))
    t = torch.linspace(0.1, 1, 9)
    sigma = SCHEDULE.sigma(t)[:, None]
    wrong = score.denoised(psi, SCHEDULE, x0 + sigma * noise, t) - x0
    expected = float(((1 + sigma**-2) * wrong.square()).mean())
    found = float(score.uniform_loss(psi, SCHEDULE, x0, t, noise))
    assert found == pytest.approx(expected, rel=1e-3)
    silent = score.start(6, generator(), width=16)
    many = (
        torch.randn(4000, 6, generator=generator(2)),
        torch.randn(4000, 6, generator=generator(3)),
    )
    for when in (0.05, 0.5, 0.95):
        t = torch.full((4000,), when)
        loss = float(score.uniform_loss(silent, SCHEDULE, many[0], t, many[1]))
        assert loss == pytest.approx(1, rel=0.05)


def test_the_score_of_a_gaussian_is_learned() -> None:
    """Of one that is no unit Gaussian: stretched to 2 and squeezed to 1/2, around (1, -1). The
    exact score is (mean - x) / (variance + sigma^2)."""
    mean, variance = torch.tensor([1.0, -1.0]), torch.tensor([4.0, 0.25])
    points = mean + variance.sqrt() * torch.randn(4000, 2, generator=generator(5))
    psi = learned(points, 500)
    for when in (0.55, 0.7, 0.85):  # sigma from 1.1 to 14
        t = torch.full((500,), when)
        sigma = SCHEDULE.sigma(t)[:, None]
        spread = (variance + sigma.square()).sqrt()
        x = mean + spread * torch.randn(500, 2, generator=generator(6))
        exact = (mean - x) / spread.square()
        wrong = (score.score(psi, SCHEDULE, x, t) - exact).square().sum()
        before = (score.score(learned(points, 0), SCHEDULE, x, t) - exact).square().sum()
        assert float((wrong / exact.square().sum()).sqrt()) < 0.25
        assert float(wrong) < float(before)


def test_points_are_drawn_by_weight() -> None:
    """A point without weight makes no difference."""
    points = torch.randn(8, 3, generator=generator())
    far = torch.cat([points, torch.full((1, 3), 1e6)])
    training = score.Training(score.uniform_loss, 3, 1e-3, batch=16, settle=True)
    psi = score.start(3, generator(), width=8)
    weights = torch.cat([torch.ones(8), torch.zeros(1)])
    found = score.trained(psi, training, SCHEDULE, far, weights, generator(1))
    assert float(max(t.abs().max() for t in found.values())) < 10


def test_the_rate_settles_or_stays() -> None:
    settling = score.Training(score.uniform_loss, 100, 0.5, 8, settle=True)
    assert [settling.rate(i) for i in (0, 50, 100)] == pytest.approx([0.5, 0.25, 0])
    assert score.Training(score.uniform_loss, 100, 0.5, 8, settle=False).rate(99) == 0.5


def test_the_first_step_of_adam_is_as_long_as_the_rate() -> None:
    """Whatever the slope. The network that was given stays as it is."""
    psi = score.start(3, generator(), width=8, silent=False)
    before = psi.map(torch.clone)
    points = torch.randn(40, 3, generator=generator())
    training = score.Training(score.literal_loss, 1, 1e-3, batch=64, settle=False)
    after = score.trained(psi, training, SCHEDULE, points, torch.ones(40), generator(1))
    for path, moved in after.items():
        assert not moved.requires_grad
        assert torch.equal(psi[path], before[path])
        assert (moved - psi[path]).abs().flatten().median().item() == pytest.approx(1e-3, rel=1e-2)


def test_a_network_fits_its_points_only() -> None:
    psi = score.start(6, generator(), width=16)
    assert score.fits(psi, 6, 16)
    assert not score.fits(psi, 7, 16)
    assert not score.fits(psi, 6, 32)
    assert not score.fits(State(), 6, 16)
    assert not score.fits(psi.pick(["0.weight", "1.weight", "2.weight"]), 6, 16)


def test_it_passes_the_codec() -> None:
    psi = score.start(6, generator(), width=16, silent=False)
    again = wire.decode(wire.encode(psi).data, State)
    assert score.fits(again, 6, 16)
    assert all(torch.equal(psi[path], again[path]) for path in psi)


def test_training_goes_on_from_where_it_was() -> None:
    """100 more steps of a network that knows the cloud beat 100 of a new one."""
    points = torch.cat([torch.full((28, 4), 0.7), torch.full((12, 4), -1.6)])
    points = points + 0.1 * torch.randn(40, 4, generator=generator())
    known = learned(points, 300)

    def loss(psi: State) -> float:
        rows = torch.arange(4000) % 40
        t, noise = (
            torch.rand(4000, generator=generator(8)),
            torch.randn(4000, 4, generator=generator(9)),
        )
        return float(score.uniform_loss(psi, SCHEDULE, points[rows], t, noise))

    assert loss(learned(points, 100, known)) < loss(learned(points, 100))
