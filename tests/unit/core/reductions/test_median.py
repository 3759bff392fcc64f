"""Medians: closed forms, an independent solver, what liars can do to them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from communis.core.reductions import median
from communis.core.reductions.median import (
    CoordinateMedian,
    GeometricMedian,
    flattened,
    rise,
    shares,
    start,
    step,
)
from communis.core.streams import Streams

STICKY = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1000.0, 1000.0]]


def drawn(name: str, *shape: int) -> Tensor:
    return torch.from_numpy(Streams(3).generator(name).normal(size=shape)).float()


def centre(points: Tensor | list[list[float]], weights: list[float] | None = None) -> Tensor:
    """The geometric median of one problem, (N, D) -> (D,)."""
    points = torch.as_tensor(points)
    w = torch.ones(len(points)) if weights is None else torch.tensor(weights)
    return GeometricMedian()(points[:, None], w[:, None])[0]


def test_single_point_and_three_on_a_line() -> None:
    assert torch.equal(centre([[3.1, -2.7, 1e-3]]), torch.tensor([3.1, -2.7, 1e-3]))
    assert torch.equal(centre([[0.0, 0.0], [9.0, 18.0], [1.0, 2.0]]), torch.tensor([1.0, 2.0]))


def test_it_does_not_stick_at_the_coordinate_wise_median() -> None:
    """(1, 1) is that median and a point, but not the optimum, which is (3 + sqrt 3) / 6."""
    expected = (3 + math.sqrt(3)) / 6
    assert centre(STICKY).tolist() == pytest.approx([expected] * 2, abs=1e-6)


def test_fermat_point_of_a_triangle() -> None:
    """All sides are seen under 120 degrees; a corner of more than 120 degrees is the optimum."""
    z = centre([[0.0, 0.0], [4.0, 0.0], [1.0, 3.0]])
    towards = torch.nn.functional.normalize(torch.tensor([[0.0, 0], [4, 0], [1, 3]]) - z)
    assert torch.allclose(
        (towards @ towards.T)[[0, 0, 1], [1, 2, 2]], torch.tensor(-0.5), atol=1e-5
    )
    assert torch.equal(centre([[-4.0, 1.0], [0.0, 0.0], [4.0, 1.0]]), torch.zeros(2))


@pytest.mark.parametrize("thin", [1.0, 1e-2, 1e-3, 1e-4])
def test_four_corners_meet_where_their_diagonals_cross(thin: float) -> None:
    """However thin the figure: F is then all but flat along it."""
    along, across = torch.tensor([[1.0, thin]]).double(), torch.tensor([[1.0, -2 * thin]]).double()
    corners = torch.cat([-along, 30 * along, -2 * across, 50 * across])
    assert centre(corners).norm().item() < 1e-5


def test_two_halves_meet_in_the_middle() -> None:
    """Every point between the inner two is optimal; whoever comes first, it is the middle."""
    points = torch.tensor([[0.0, 0.0], [8.0, 4.0], [2.0, 1.0], [4.0, 2.0]])
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        assert torch.allclose(centre(points[order]), torch.tensor([3.0, 1.5]))
    assert torch.allclose(centre([[0.0, 1.0], [2.0, 3.0]]), torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("size", [1, 3, 40])
def test_it_moves_and_turns_with_the_points(size: int) -> None:
    points, weights = drawn("points", 9, 5, size), drawn("weights", 9, 5).abs()
    found = GeometricMedian()(points, weights)
    turn = torch.linalg.qr(drawn("turn", size, size)).Q
    shift = 100 * drawn("shift", 5, size)
    assert torch.allclose(GeometricMedian()(points @ turn, weights), found @ turn, atol=1e-5)
    assert torch.allclose(GeometricMedian()(points + shift, weights), found + shift, atol=1e-4)
    assert torch.allclose(GeometricMedian()(1e20 * points, weights), 1e20 * found, atol=1e14)
    order = torch.tensor([4, 8, 0, 2, 7, 1, 3, 6, 5])
    assert torch.allclose(GeometricMedian()(points[order], weights[order]), found, atol=1e-6)


def test_no_step_leads_up() -> None:
    """From anywhere, points included, by the plain sum of distances."""
    points, weights = drawn("points", 7, 40, 3), drawn("weights", 7, 40).abs()
    share = shares(weights)
    y, p = flattened(points, share), share.T
    falls = 0.0
    for z0 in (start(y, p), y[:, 2], torch.zeros_like(y[:, 0]), 5 * drawn("far", 40, 3).double()):
        z = z0
        for _ in range(15):
            before = (p * (y - z[:, None]).norm(dim=-1)).sum(-1)
            new, _ = step(y, p, z)
            after = (p * (y - new[:, None]).norm(dim=-1)).sum(-1)
            assert (after <= before + 1e-14).all()
            assert torch.allclose(rise(y, p, z, new), after - before, atol=1e-14)
            falls, z = max(falls, (before - after).max().item()), new
    assert falls > 0.1


def problems(kind: str) -> tuple[Tensor, Tensor]:
    """(N, K, D) and (N, K): K = 4 of a kind."""
    rng = Streams(11).generator("problems")
    if kind == "triangles":
        points = rng.normal(size=(3, 4, 2))
    elif kind == "two clusters":  # nearly on a line: long, flat valleys
        points = rng.normal(size=(4, 4, 2)) + 100 * np.array([0, 0, 1, 1])[:, None, None]
    elif kind == "latents":
        points = rng.normal(size=(14, 4, 16))
    elif kind == "flat":  # every dimension a tenth of the one before
        points = rng.normal(size=(5, 4, 4)) * 10.0 ** -np.arange(4)
    else:  # heavy tails
        points = rng.standard_cauchy(size=(8, 4, 3))
    weights = rng.uniform(0.2, 2, points.shape[:2])
    return torch.from_numpy(points).float(), torch.from_numpy(weights).float()


@pytest.mark.parametrize("kind", ["triangles", "two clusters", "latents", "flat", "cauchy"])
def test_against_an_independent_solver(kind: str) -> None:
    """No worse than the best of several descents and of the points, and at the same place."""
    points, weights = problems(kind)
    found = GeometricMedian()(points.double(), weights).numpy()
    for k, ours in enumerate(found):
        x, w = points[:, k].double().numpy(), weights[:, k].double().numpy()

        def total(z: np.ndarray, x: np.ndarray = x, w: np.ndarray = w) -> tuple[float, np.ndarray]:
            away = np.linalg.norm(x - z, axis=1)
            return float(w @ away), (w / np.maximum(away, 1e-12)) @ (z - x)

        starts = [x.mean(0), np.median(x, 0) + 1e-3, *x[:3] + 1e-3]
        ends = [minimize(total, z, jac=True, options={"gtol": 1e-10}).x for z in starts]
        best = min([*ends, *x], key=lambda z: total(z)[0])
        assert total(ours)[0] <= total(best)[0] * (1 + 1e-13)
        scale = np.median(np.linalg.norm(x - best, axis=1))
        assert np.linalg.norm(ours - best) < 1e-5 * scale


def test_liars_short_of_half_cannot_move_it_far() -> None:
    """14 points of which some go to 1e6: by less than the honest diameter up to 6, far off with 7;
    the mean goes along in proportion."""
    points = drawn("points", 14, 1, 16)
    before, weights = GeometricMedian()(points, torch.ones(14, 1)), torch.ones(14, 1)
    diameter = torch.cdist(points[:, 0], points[:, 0]).max().item()
    moves = []
    for liars in (2, 4, 6, 7):
        attacked = points.clone()
        attacked[:liars] = 1e6 + drawn("lies", liars, 1, 16)
        moves.append((GeometricMedian()(attacked, weights) - before).norm().item() / diameter)
        mean = (attacked.mean(0) - points.mean(0)).norm().item()
        assert mean == pytest.approx(liars / 14 * 4e6, rel=1e-3)
    assert 0 < moves[0] < moves[1] < moves[2] < 1
    assert moves[3] > 1e4


@pytest.mark.parametrize("rule", [GeometricMedian(), CoordinateMedian()])
def test_problems_do_not_mix(rule: GeometricMedian | CoordinateMedian) -> None:
    points, weights = drawn("points", 6, 7, 4), drawn("weights", 6, 7).clamp(min=0)
    points[:, 3] *= 1e25
    together = rule(points, weights)
    for k in range(7):
        alone = rule(points[:, k : k + 1], weights[:, k : k + 1])
        assert torch.allclose(together[k], alone[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("rule", [GeometricMedian(), CoordinateMedian()])
def test_weights_are_multiplicities(rule: GeometricMedian | CoordinateMedian) -> None:
    points, times = drawn("points", 5, 3, 2), torch.tensor([1, 3, 2, 0, 4])
    weighted = rule(points, times[:, None].expand(5, 3) * 0.7)
    repeated = points.repeat_interleave(times, 0)
    assert torch.allclose(weighted, rule(repeated, torch.ones(10, 3)), atol=1e-6)


@pytest.mark.parametrize("rule", [GeometricMedian(), CoordinateMedian()])
def test_who_has_no_weight_is_not_heard(rule: GeometricMedian | CoordinateMedian) -> None:
    points, weights = drawn("points", 5, 4, 3), torch.ones(5, 4)
    weights[1] = 0
    weights[1:, 2] = 0  # one holder
    weights[:, 3] = 0  # none
    found = rule(points, weights)
    points[1] = 3e38
    assert torch.equal(rule(points, weights), found)
    assert torch.equal(found[2], points[0, 2])
    assert torch.equal(found[3], torch.zeros(3))
    kept = torch.tensor([0, 2, 3, 4])
    assert torch.allclose(found[:2], rule(points[kept, :2], torch.ones(4, 2)), atol=1e-6)


@pytest.mark.parametrize("rule", [GeometricMedian(), CoordinateMedian()])
def test_equal_points_and_majorities_stay_what_they_are(
    rule: GeometricMedian | CoordinateMedian,
) -> None:
    same = drawn("points", 1, 2, 30)
    assert torch.equal(rule(same.expand(6, 2, 30), torch.ones(6, 2)), same[0])
    most = torch.cat([same.expand(4, 2, 30), 1e3 * drawn("others", 3, 2, 30)])
    assert torch.equal(rule(most, torch.ones(7, 2)), same[0])


@pytest.mark.parametrize("rule", [GeometricMedian(), CoordinateMedian()])
@pytest.mark.parametrize("far", [1e12, 1e30, 3.4e38])
def test_absurd_values_are_outvoted(rule: GeometricMedian | CoordinateMedian, far: float) -> None:
    """As far away in the same directions as anything: for a median only directions count."""
    points = drawn("points", 7, 2, 5)
    towards = torch.tensor([1.0, -1, 1, 1, -1])
    points[[1, 4]] = 1e9 * towards
    expected = rule(points, torch.ones(7, 2))
    points[[1, 4]] = far * towards
    assert torch.allclose(rule(points, torch.ones(7, 2)), expected, atol=1e-5)
    points[:] = far * towards
    assert rule(points, torch.ones(7, 2)).isfinite().all()
    huge = 1e300 * points.sign().double()
    assert torch.allclose(rule(huge, torch.ones(7, 2)), huge[0], rtol=1e-12)


def test_whole_models_are_read_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    points, weights = drawn("points", 6, 2, 50), drawn("weights", 6, 2).abs()
    rules = (GeometricMedian(), CoordinateMedian())
    whole = [rule(points, weights) for rule in rules]
    monkeypatch.setattr(median, "BLOCK", 6 * 2 * 4)  # fewer coordinates than points
    for rule, expected in zip(rules, whole, strict=True):
        assert torch.allclose(rule(points, weights), expected, atol=1e-6)


def test_coordinate_median_by_hand() -> None:
    points = torch.tensor([5.0, 1.0, 9.0, 2.0])[:, None, None]
    weights = torch.tensor([[1.0, 1, 1, 0.1], [1, 1, 0, 0.1], [1, 6, 1, 0.3], [1, 1, 1, 0.1]])
    found = CoordinateMedian()(points.expand(4, 4, 1), weights)
    # between 2 and 5; 9 has more than half; the middle of 2, 5, 9; exactly half is up to 5
    assert found.flatten().tolist() == pytest.approx([3.5, 9, 5, 7])


def test_coordinate_median_is_torchs_for_odd_counts() -> None:
    points = drawn("points", 9, 4, 6)
    expected = points.median(0).values
    assert torch.equal(CoordinateMedian()(points, torch.full((9, 4), 0.1)), expected)
