"""The variance-exploding process: how noise grows, and that both ways back undo it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from communis.methods.parts.diffusion.ve import (
    Schedule,
    embedding,
    probability_flow,
    reverse_samples,
)
from tests.unit.methods.parts.diffusion.clouds import generator

SCHEDULE = Schedule()
TIMES = torch.linspace(0, 1, 11, dtype=torch.double)


def test_noise_grows_geometrically_between_its_ends() -> None:
    sigma = SCHEDULE.sigma(TIMES)
    assert float(sigma[0]) == pytest.approx(0.01)
    assert float(sigma[-1]) == pytest.approx(50)
    ratios = sigma[1:] / sigma[:-1]
    assert torch.allclose(ratios, torch.full_like(ratios, 5000**0.1))
    assert [SCHEDULE.time(float(s)) for s in sigma] == pytest.approx(TIMES.tolist())


def test_g_squared_is_the_slope_of_the_variance() -> None:
    t = TIMES.clone().requires_grad_()
    (slope,) = torch.autograd.grad(SCHEDULE.sigma(t).square().sum(), t)
    assert torch.allclose(SCHEDULE.g(TIMES).square(), slope)


def test_forwards_the_variance_is_that_of_the_schedule() -> None:
    """Steps dx = g dW from a point: sigma(t)^2 - sigma(0)^2, which leaves out sigma(0)^2."""
    steps, paths, draw = 400, 20_000, generator(0, "forwards")
    x = torch.zeros(paths, dtype=torch.double)
    for i in range(steps):
        g = SCHEDULE.g(torch.tensor((i + 0.5) / steps))
        x += float(g) * math.sqrt(1 / steps) * torch.randn(paths, generator=draw)
    assert float(x.var()) == pytest.approx(50**2 - 0.01**2, rel=0.04)


def test_embedding_of_time() -> None:
    t = torch.tensor([0.0, 0.3])
    found = embedding(t, 8)
    assert torch.allclose(found[0], torch.tensor([0.0] * 4 + [1.0] * 4))
    angles = [0.3 * f for f in (1, 10, 100, 1000)]
    expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    assert found[1].tolist() == pytest.approx(expected, abs=1e-4)


def normal_score(x: Tensor, t: Tensor) -> Tensor:
    """Of points with mean 3 and variance 4, under the noise at t."""
    return (3 - x) / (4 + SCHEDULE.sigma(t)[:, None].square())


def test_samples_have_the_density_whose_score_is_followed() -> None:
    draw = generator(0, "back")
    x = 50 * torch.randn(20_000, 1, generator=draw)
    found = reverse_samples(x, normal_score, SCHEDULE, 400, draw)
    assert float(found.mean()) == pytest.approx(3, abs=0.1)
    assert float(found.std()) == pytest.approx(2, rel=0.05)


def test_the_last_step_adds_no_noise() -> None:
    """A single step is the last one: where it ends depends on where it starts alone."""
    x = torch.tensor([[7.0]])
    found = reverse_samples(x, normal_score, SCHEDULE, 1, generator())
    g2 = 2 * math.log(5000) * 50**2
    assert float(found) == pytest.approx(7 + g2 * (3 - 7) / (4 + 50**2), rel=1e-4)


def test_the_flow_carries_quantiles_to_quantiles() -> None:
    """From one standard deviation above the mean at sigma = 4 to one above at 0.01."""
    at = SCHEDULE.time(4.0)
    x = torch.tensor([[3 + math.sqrt(4 + 16)], [3.0]])
    found = probability_flow(x, normal_score, SCHEDULE, at, 1000)
    assert found.flatten().tolist() == pytest.approx([5, 3], abs=0.02)
