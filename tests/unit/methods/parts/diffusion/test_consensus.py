"""The consensus: near the centre of a cloud, out of reach of liars, and the mean when in doubt."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from communis import CommunisError
from communis.core.state import State
from communis.exchange import wire
from communis.methods.parts.diffusion.consensus import Diffusion, kernel_mode
from tests.unit.methods.parts.diffusion.clouds import (
    against_mean,
    error,
    gauss,
    met,
    noisy,
    outliers,
    two,
)

SEEDS = (0, 1, 2)
SMALL: dict[str, Any] = {  # for points of 64 numbers
    "score_width": 128,
    "score_steps": 150,
    "score_batch": 64,
}
LITERAL: dict[str, Any] = {  # one sample of the score itself, wherever it is
    "sampler": "sample_mean",
    "samples": 1,
    "trust_region": 0.0,
    "least_clients": 1,
    "score_output": "raw",
    "score_steps": 500,
    "score_steps_warm": 500,
    "score_lr": 1e-3,
    "score_decay": False,
    "score_keep": 1.0,
}
KERNEL = Diffusion("kernel")
each_sampler = pytest.mark.parametrize("sampler", ["raw", "sample_mean", "denoise_mean", "kernel"])


def brief(sampler: Any) -> Diffusion:
    """Where it does not matter how well it is trained. raw: the score itself is learned."""
    return Diffusion(
        sampler="sample_mean" if sampler == "raw" else sampler,
        samples=4,
        score_output="raw" if sampler == "raw" else "preconditioned",
        score_width=16,
        score_steps=5,
        score_steps_warm=5,
        score_batch=16,
    )


# How far from the centre


@pytest.mark.parametrize("seed", SEEDS)
def test_kernel(seed: int) -> None:
    assert against_mean(gauss(seed), KERNEL) <= 1.02
    assert against_mean(noisy(seed), KERNEL) <= 1.02
    assert against_mean(outliers(seed), KERNEL) <= 0.25
    assert against_mean(two(seed), KERNEL) <= 0.25


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_denoise_mean_in_small(seed: int) -> None:
    how = Diffusion(**SMALL)
    assert against_mean(gauss(seed, 64), how, seed) <= 1.2
    assert against_mean(outliers(seed, 64), how, seed) <= 0.4
    assert against_mean(two(seed, 64), how, seed) <= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_denoise_mean_as_it_is_used(seed: int) -> None:
    assert against_mean(gauss(seed), Diffusion(), seed) <= 1.35
    assert against_mean(outliers(seed), Diffusion(), seed) <= 0.6


def test_samples_are_no_consensus_and_their_mean_is_a_worse_one() -> None:
    """One sample is as far away as a client; the mean of 64 is between it and the denoised mean."""
    points, centre = gauss(0, 64)
    errors = {}
    for name, how in {
        "denoised": Diffusion(**SMALL),
        "samples": Diffusion("sample_mean", **SMALL),
        "sample": Diffusion("sample_mean", samples=1, **SMALL),
    }.items():
        found = met(points, how)
        assert found.fallback in ("", "outside the trust region")
        errors[name] = error(found.value, centre)
    assert errors["denoised"] < errors["samples"] < 0.6 < errors["sample"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_the_paper_s_sample_ends_far_outside_of_the_cloud(seed: int) -> None:
    """Without a trust region it is taken all the same; with one the mean stands in."""
    points, _ = gauss(seed, 32)
    free = met(points, Diffusion(**LITERAL | {"score_width": 64}), seed)
    assert free.fallback == ""
    assert free.distance > 100
    radius = (points - points.mean(0)).norm(dim=1).max()
    off = float((free.value - points.mean(0)).norm() / radius)
    assert off == pytest.approx(free.distance, rel=1e-4)  # the value is in single precision
    caught = met(points, Diffusion(**LITERAL | {"score_width": 64, "trust_region": 1.0}), seed)
    assert caught.fallback == "outside the trust region"
    assert caught.distance == free.distance
    assert torch.allclose(caught.value, points.mean(0), atol=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_single_sample_of_a_score_that_can_be_learned_is_about_as_far_as_clients(
    seed: int,
) -> None:
    points, _ = gauss(seed, 64)
    how = Diffusion(sampler="sample_mean", samples=1, trust_region=0.0, **SMALL)
    found = met(points, how, seed)
    assert found.fallback == ""
    assert 0.3 < found.distance < 2


def test_the_trust_region_has_the_radius_that_is_asked_for() -> None:
    """In radii of the cloud: a consensus is taken if it is no farther from the mean."""
    points, _ = two(0, 16)
    distance = met(points, KERNEL).distance
    assert 0 < distance < 1
    near, far = (Diffusion("kernel", trust_region=distance * f) for f in (0.99, 1.01))
    assert met(points, near).fallback == "outside the trust region"
    assert met(points, near).distance == distance
    assert met(points, far).fallback == ""


def test_a_consensus_that_is_not_finite_is_never_taken() -> None:
    """Trust region or not: points near the largest number of single precision have a sample beyond
    it."""
    points = 3e38 * torch.sign(gauss(0, 8)[0])
    found = met(points, Diffusion(**LITERAL | {"score_width": 16, "score_steps": 5}))
    assert (found.fallback, found.distance, len(found.psi)) == ("not finite", 0.0, 0)
    assert bool(torch.isfinite(found.value).all())


# When in doubt, the mean


@each_sampler
def test_few_clients_have_no_density(sampler: str) -> None:
    points, _ = gauss(0, 6, n=7)
    psi = State({"kept": torch.ones(1)})
    found = met(points, brief(sampler), psi=psi)
    assert (found.fallback, found.psi) == ("few clients", psi)
    assert torch.allclose(found.value, points.mean(0))
    more, _ = gauss(0, 6, n=8)
    assert met(more, brief(sampler)).fallback != "few clients"
    weights = torch.tensor([1.0] * 7 + [0.0])  # who has no weight is not there
    assert met(more, brief(sampler), weights=weights).fallback == "few clients"


@each_sampler
def test_points_that_do_not_differ(sampler: str) -> None:
    """However large they are: the mean of equal numbers is off by rounding, which differs between
    processors, and is one of them again in single precision."""
    point = torch.tensor([0.1, -7e5, 3e-9])
    found = met(point.expand(12, 3), brief(sampler), weights=torch.arange(1.0, 13))
    assert found.fallback == "no spread"
    assert torch.equal(found.value, point)


@pytest.mark.parametrize(("offset", "scale"), [(0.0, 1e-16), (-7e5, 1e-3)])
def test_small_differences_are_differences(offset: float, scale: float) -> None:
    """Of small points, and beside a coordinate that is large and the same for all. The second are
    1e6 times what rounding at 7e5 comes to."""
    cloud, _ = two(0, 16)
    points = torch.cat([scale * cloud.double(), torch.full((40, 1), offset).double()], 1)
    found, expected = met(points, KERNEL), met(cloud.double(), KERNEL)
    assert found.fallback == ""
    assert torch.allclose(found.value[:16] / scale, expected.value, rtol=1e-5)


def test_the_mean_is_weighted() -> None:
    points, weights = torch.tensor([[0.0], [4.0]]), torch.tensor([3.0, 1.0])
    assert met(points, KERNEL, weights=weights).value.tolist() == [1.0]


def test_a_score_that_is_not_finite_is_not_carried_on() -> None:
    points, _ = gauss(0, 4)
    psi = met(points, brief("denoise_mean")).psi
    spoiled = psi.map(lambda tensor: torch.full_like(tensor, torch.nan))
    found = met(points, brief("denoise_mean"), psi=spoiled)
    assert (found.fallback, len(found.psi)) == ("not finite", 0)
    assert torch.allclose(found.value, points.mean(0), atol=1e-6)


@each_sampler
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_points_and_weights_must_be_numbers(sampler: str, bad: float) -> None:
    points, _ = gauss(0, 4)
    spoiled = points.clone()
    spoiled[3, 2] = bad
    with pytest.raises(ValueError, match="finite"):
        met(spoiled, brief(sampler))
    with pytest.raises(ValueError, match="finite"):
        met(points, brief(sampler), weights=torch.full((40,), bad))


@pytest.mark.parametrize("weights", [torch.zeros(40), torch.tensor([-1.0] + [1.0] * 39)])
def test_weights_must_be_weights(weights: Tensor) -> None:
    with pytest.raises(ValueError, match="weights"):
        met(gauss(0, 4)[0], KERNEL, weights=weights)


# The kernel in closed form


def test_kernel_by_hand() -> None:
    """Two points at distance 2: the noise is 1, and the heavier one draws: y = tanh(y + a) with
    a = log(3) / 2 is where it stands still."""
    y = float(
        kernel_mode(torch.tensor([[-1.0], [1.0]]).double(), torch.tensor([1.0, 3.0]).double())
    )
    a = torch.log(torch.tensor(3.0)).item() / 2
    assert y == pytest.approx(torch.tanh(torch.tensor(y + a)).item(), abs=1e-4)
    assert 0.5 < y < 1  # from the mean towards the heavier one


def test_kernel_goes_by_weight() -> None:
    """A client that weighs two is two clients, but for the distances that the noise goes by."""
    points, _ = two(0, 16)
    heavy = torch.cat([torch.ones(28), torch.full((12,), 50.0)])
    value = met(points, KERNEL, weights=heavy).value
    assert error(value, points[28:].mean(0)) < error(value, points[:28].mean(0))


def test_kernel_where_most_points_are_the_same() -> None:
    points = torch.zeros(40, 3)
    points[36:] = torch.tensor([8.0, 0.0, 0.0])
    found = met(points, KERNEL)
    assert found.fallback == ""
    assert float(found.value[0]) < 0.3 < float(points.mean(0)[0])


# Coordinates, randomness, memory


@pytest.mark.parametrize("sampler", ["sample_mean", "denoise_mean", "kernel"])
def test_it_moves_and_grows_with_the_points(sampler: Any) -> None:
    points, _ = two(0, 16)
    how, shift = brief(sampler), torch.linspace(-3, 3, 16)
    value = met(points, how).value
    moved = met(1000 * points.double() + shift, how)
    assert moved.value.dtype is torch.double
    assert torch.allclose(moved.value.float(), 1000 * value + shift, rtol=1e-3, atol=0.1)


@each_sampler
def test_the_generator_settles_everything(sampler: str) -> None:
    points, _ = two(0, 16)
    one, same = (met(points, brief(sampler), seed=4) for _ in range(2))
    assert torch.equal(one.value, same.value)
    assert all(torch.equal(one.psi[path], same.psi[path]) for path in same.psi)


def test_no_common_randomness_is_touched() -> None:
    before = torch.get_rng_state()
    met(two(0, 16)[0], brief("sample_mean"))
    assert torch.equal(before, torch.get_rng_state())


def test_a_known_network_is_trained_on_and_one_that_does_not_fit_is_replaced() -> None:
    """Next to no learning rate leaves it as it was, or half of it."""
    points, _ = outliers(0, 16)
    first = met(points, Diffusion(score_width=32, score_steps=20))
    for keep in (1.0, 0.5):
        how = Diffusion(score_width=32, score_steps_warm=1, score_lr=1e-9, score_keep=keep)
        again = met(points, how, psi=first.psi)
        assert again.psi.keys() == first.psi.keys()
        for path in first.psi:
            assert torch.allclose(again.psi[path], keep * first.psi[path], atol=1e-8)
    anew = Diffusion(score_width=32, score_steps=20, score_keep=0.0)
    again = met(points, anew, psi=first.psi)
    assert all(torch.equal(again.psi[path], first.psi[path]) for path in first.psi)
    other = met(outliers(0, 9)[0], brief("denoise_mean"), psi=first.psi)
    assert other.psi["2.bias"].shape == (9,)
    assert met(points, KERNEL, psi=first.psi).psi is first.psi


def test_after_the_codec_it_goes_on_the_same() -> None:
    points, _ = outliers(0, 16)
    how = Diffusion(score_width=32, score_steps=20, score_steps_warm=5)
    psi = met(points, how).psi
    sent = wire.decode(wire.encode(psi).data, State)
    assert torch.equal(met(points, how, psi=psi).value, met(points, how, psi=sent).value)


def rounds(cloud: Any, how: Diffusion) -> list[float]:
    """Errors as multiples of the mean's, of a network that goes from cloud to cloud."""
    psi, found = State(), []
    for round in range(5):
        points, centre = cloud(round)
        now = met(points, how, seed=round, psi=psi)
        psi = now.psi
        found.append(error(now.value, centre) / error(points.mean(0), centre))
    return found


@pytest.mark.slow
def test_round_after_round_little_training_is_enough() -> None:
    """Liars stay without a hold; and nothing is learned by heart, as it would be if the network
    were not shrunk."""
    assert max(rounds(outliers, Diffusion())) < 0.6
    assert max(rounds(gauss, Diffusion())) < 1.35
    assert max(rounds(gauss, Diffusion(score_keep=1.0))) > 1.35


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"sampler": "mode"},
            "sampler must be one of 'sample_mean', 'denoise_mean', 'kernel', got 'mode'",
        ),
        ({"score_output": "edm"}, "score_output must be one of 'preconditioned', 'raw', got 'edm'"),
        ({"sigma_min": 0.0}, "sigma_min"),
        ({"sigma_start": 60.0}, "sigma_start <= sigma_max"),
        ({"score_lr": float("inf")}, "score_lr must be positive"),
        ({"reverse_steps": 0}, "reverse_steps must be at least 1, got 0"),
        ({"least_clients": 0}, "least_clients must be at least 1"),
        ({"score_width": 0}, "score_width must be at least 1"),
        ({"score_keep": 1.1}, r"score_keep must be in \[0, 1\], got 1.1"),
        ({"score_lr": 0.0}, "score_lr must be positive"),
        ({"score_steps": -1}, "score_steps must be at least 0"),
        ({"trust_region": -1.0}, "trust_region must be at least 0"),
    ],
)
def test_settings_are_checked(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CommunisError, match=words):
        Diffusion(**changes)
