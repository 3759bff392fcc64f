"""Rules that stand in for the mean: by hand, on too few clients, in any order, inside Replies."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from communis import CommunisError, Replies, State
from communis.core.reductions.median import CoordinateMedian, GeometricMedian
from communis.core.reductions.rules import Krum, MultiKrum, TrimmedMean
from communis.core.reductions.settings import RobustConfig
from communis.core.replies import Rule, samples, uniform
from communis.core.streams import Streams
from tests.unit.small import card

RULES: list[Rule] = [
    GeometricMedian(),
    CoordinateMedian(),
    TrimmedMean(0.2),
    Krum(2),
    MultiKrum(2),
    MultiKrum(1, keep=3),
]
LINE = (0.0, 1.0, 3.0, 10.0, 100.0)  # squares to the two nearest: 10, 5, 13, 130, 90^2 + 97^2
each = pytest.mark.parametrize("rule", RULES, ids=str)


def drawn(name: str, *shape: int) -> Tensor:
    return torch.from_numpy(Streams(5).generator(name).normal(size=shape)).float()


def of(rule: Rule, values: tuple[float, ...], weights: tuple[float, ...] | None = None) -> float:
    """One problem of one dimension."""
    points = torch.tensor(values)[:, None, None]
    w = torch.ones(len(values)) if weights is None else torch.tensor(weights)
    return rule(points, w[:, None]).item()


@pytest.mark.parametrize(
    ("share", "expected"), [(0, 22.8), (0.2, 14 / 3), (0.4, 3), (0.1, (0.5 * 0 + 14 + 50) / 4)]
)
def test_trimmed_mean_by_hand(share: float, expected: float) -> None:
    """A tenth of five clients is half a client at each end."""
    for order in (LINE, LINE[::-1], LINE[2:] + LINE[:2]):
        assert of(TrimmedMean(share), order) == pytest.approx(expected)


def test_trimmed_mean_by_weight() -> None:
    """0.5 of 2 at each end: half of the 1; all of the 9 and a third of the 5."""
    assert of(TrimmedMean(0.25), (9.0, 1.0, 5.0), (0.25, 1.0, 0.75)) == pytest.approx(3)


@pytest.mark.parametrize("f", [0, 1, 3, 6])
def test_trimmed_mean_of_equal_weights_is_the_classical_one(f: int) -> None:
    points = drawn("points", 14, 3, 5)
    points[:f] = 1e30  # nothing of it is left over by rounding
    expected = points.sort(0).values[f : 14 - f].mean(0)
    found = TrimmedMean(f / 14)(points, torch.full((14, 3), 0.3))
    assert torch.allclose(found, expected, atol=1e-6)


def test_trimmed_mean_of_nearly_whole_clients_moves_with_them() -> None:
    """What is so little that it counts as rounding is missing from the sum and from its divisor."""
    points = 1e6 + drawn("points", 5, 1, 4).double()
    found = TrimmedMean(0.2 - 1e-8)(points, torch.ones(5, 1)) - TrimmedMean(0.2)(
        points, torch.ones(5, 1)
    )
    assert found.abs().max().item() < 1e-6


def test_krum_by_hand() -> None:
    assert of(Krum(1), LINE) == 1
    assert of(MultiKrum(1, keep=2), LINE) == 0.5
    assert of(MultiKrum(1, keep=3), LINE) == pytest.approx(4 / 3)
    assert of(MultiKrum(1), LINE) == 3.5  # all but one
    assert of(MultiKrum(1, keep=9), LINE) == 3.5
    assert of(MultiKrum(0), LINE) == pytest.approx(22.8)


def test_weights_enter_krums_mean_and_not_its_choice() -> None:
    weights = (3.0, 1.0, 1.0, 1.0, 50.0)
    assert of(Krum(1), LINE, weights) == 1
    assert of(MultiKrum(1, keep=2), LINE, weights) == 0.25
    assert of(MultiKrum(1), LINE, weights) == pytest.approx(14 / 6)


@pytest.mark.parametrize("liars", [1, 2, 50])
def test_krum_takes_as_many_liars_as_the_holders_allow(liars: int) -> None:
    """Five holders: one liar, as above. Three: none, and their nearest pair ties."""
    assert of(Krum(liars), (*LINE, 7.0), (1, 1, 1, 1, 1, 0)) == 1
    assert of(MultiKrum(liars), (*LINE, 7.0), (1, 1, 1, 1, 1, 0)) == 3.5
    assert of(Krum(liars), (5.0, 0.0, 1.0)) == 0.5


@pytest.mark.parametrize("rule", [Krum(1), MultiKrum(1), MultiKrum(1, keep=1)], ids=str)
def test_krum_of_two_is_their_weighted_mean(rule: Rule) -> None:
    assert of(rule, (4.0, 8.0, 1e9), (3.0, 1.0, 0.0)) == 5


def test_ties_at_the_border_are_shared() -> None:
    """1 is best; 0 and 2 tie for the second place, and each gets half of it."""
    values = (1.0, 0.0, 2.0, 30.0, -28.0)
    for order in (values, values[::-1]):
        assert of(MultiKrum(1, keep=2), order) == pytest.approx(1)
    square = torch.tensor([[1.0, 0.3], [0.3, -1], [-0.3, 1], [-1, -0.3]])[:, None] / 7
    for shift in (0, 0.1, 7):  # the sides are equal but for rounding
        found = Krum(0)(square + shift, torch.ones(4, 1))
        assert torch.allclose(found, torch.tensor(float(shift)), atol=1e-6)


@each
def test_the_order_of_clients_does_not_matter(rule: Rule) -> None:
    """Ties included: points on a small grid, many of them twice."""
    points = drawn("points", 9, 30, 2).mul(1.5).round()
    weights = drawn("weights", 9, 30).clamp(min=0)
    for seed in range(3):
        order = torch.from_numpy(Streams(seed).generator("order").permutation(9))
        found = rule(points[order], weights[order])
        assert torch.allclose(found, rule(points, weights), atol=1e-6)


@each
def test_rules_move_with_the_points(rule: Rule) -> None:
    points, weights, shift = drawn("points", 8, 6, 4), drawn("w", 8, 6).abs(), drawn("s", 6, 4)
    found = rule(points, weights)
    assert torch.allclose(rule(points + shift, weights), found + shift, atol=1e-5)
    assert torch.allclose(rule(-3 * points, weights), -3 * found, atol=1e-5)


@pytest.mark.parametrize("rule", [Krum(2), MultiKrum(2), MultiKrum(1, keep=3)], ids=str)
def test_krum_turns_with_the_points(rule: Rule) -> None:
    points, weights = drawn("points", 8, 6, 4), drawn("w", 8, 6).abs()
    turn = torch.linalg.qr(drawn("turn", 4, 4)).Q
    assert torch.allclose(rule(points @ turn, weights), rule(points, weights) @ turn, atol=1e-5)


@each
def test_degenerate_problems(rule: Rule) -> None:
    """All the same, one holder, nobody; and problems do not mix."""
    points, weights = drawn("points", 7, 4, 3), torch.ones(7, 4)
    points[:, 0] = points[0, 0]
    weights[1:, 1] = 0
    weights[:, 2] = 0
    found = rule(points, weights)
    assert torch.allclose(found[:2], points[0, :2], atol=1e-7)
    assert torch.equal(found[2], torch.zeros(3))
    assert torch.allclose(found[3:], rule(points[:, 3:], weights[:, 3:]), atol=1e-7)
    assert found.dtype == torch.float32
    points[1:, 1], points[:, 2] = 3e38, -3e38  # who has no weight is not heard
    assert torch.allclose(rule(points, weights), found, atol=1e-7)


@each
@pytest.mark.parametrize("far", [1e6, 1e30, 3.4e38])
def test_one_liar_of_seven_is_outvoted(rule: Rule, far: float) -> None:
    points = drawn("points", 7, 2, 4)
    honest = points[1:].clone()
    points[0] = far
    found = rule(points, torch.ones(7, 2))
    assert (found <= honest.amax(0)).all()
    assert (found >= honest.amin(0)).all()
    points[:4] = far
    assert rule(points, torch.ones(7, 2)).isfinite().all()


def test_settings_make_rules() -> None:
    assert RobustConfig().make() is None
    assert RobustConfig("geometric_median").make() == GeometricMedian()
    assert RobustConfig("median").make() == CoordinateMedian()
    assert RobustConfig("trimmed_mean", trim=0.3).make() == TrimmedMean(0.3)
    assert RobustConfig("krum", liars=3).make() == Krum(3)
    assert RobustConfig("multi_krum", liars=3, keep=2).make() == MultiKrum(3, 2)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"rule": "trimmed_mean", "trim": 0.5}, "trim is a share from 0 to 0.49, got 0.5"),
        ({"rule": "trimmed_mean", "trim": -0.1}, "got -0.1"),
        ({"rule": "krum", "liars": -1}, "liars must not be negative, got -1"),
        ({"rule": "multi_krum", "keep": -2}, "keep must not be negative, got -2"),
        (
            {"liars": 2},
            "liars = 2 has no meaning with rule = 'mean', only with krum",
        ),
        ({"rule": "krum", "keep": 2}, "keep = 2 has no meaning with rule = 'krum'"),
        ({"rule": "kram"}, "no rule 'kram'; there are mean, geometric_median"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CommunisError, match=complaint):
        RobustConfig(**settings)


def replies(rule: Rule | None, *sent: tuple[int, State]) -> Replies[State]:
    return Replies([(card(samples=n, id=i), up) for i, (n, up) in enumerate(sent)], rule)


def state(**values: list[float]) -> State:
    return State({path: torch.tensor(value) for path, value in values.items()})


def same(up: State) -> State:
    return up


def test_replies_take_one_median_of_whole_models() -> None:
    """Keys of the same holders are one vector: the median is not that of each key by itself."""
    ups = [(1, state(a=[[float(a)]], b=[float(b)])) for a, b in ((0, 0), (1, 0), (0, 1), (1, 1))]
    ups.append((1, state(a=[[1000.0]], b=[1000.0])))
    mean = replies(GeometricMedian(), *ups).mean(same, by=uniform)
    assert mean["a"].shape == (1, 1)
    assert [mean["a"].item(), mean["b"].item()] == pytest.approx([0.788675, 0.788675], rel=1e-5)
    each_alone = [
        replies(GeometricMedian(), *((n, up.pick([key])) for n, up in ups)) for key in "ab"
    ]
    assert [r.mean(same, by=uniform)[k].item() for r, k in zip(each_alone, "ab", strict=True)] == [
        1,
        1,
    ]


def test_replies_of_cohorts_and_weights() -> None:
    """`y` is held by two: their weighted median is the heavier one's."""
    ups = [(1, state(x=[0.0], y=[5.0])), (1, state(x=[1.0])), (3, state(x=[900.0], y=[7.0]))]
    mean = replies(CoordinateMedian(), *ups).mean(same, by=samples)
    assert {k: v.tolist() for k, v in mean.items()} == {"x": [900.0], "y": [7.0]}
    mean = replies(CoordinateMedian(), *ups).mean(same, by=uniform)
    assert {k: v.tolist() for k, v in mean.items()} == {"x": [1.0], "y": [6.0]}


def test_replies_by_class() -> None:
    """A class counts for those who have any of it; a class that nobody has is zero."""
    sums = [torch.tensor([[2.0], [0.0], [0.0]]), torch.tensor([[3.0], [4.0], [0.0]])]
    counts = [torch.tensor([2.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 0.0])]
    received = [(card(id=i), pair) for i, pair in enumerate(zip(sums, counts, strict=True))]
    means, totals = Replies(received).classwise(
        lambda up: up[0], lambda up: up[1], GeometricMedian()
    )
    assert means.flatten().tolist() == [1, 2, 0]
    assert totals.tolist() == [3, 2, 0]
