"""Replies under a robust rule: whole vectors, cohort by cohort."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from communis import Plan, Replies, Run, State
from communis.core.plugins import find
from communis.core.reductions.median import GeometricMedian
from communis.core.reductions.settings import RobustConfig
from communis.core.replies import presence, samples, uniform
from tests.contract.abilities import SENDING
from tests.fleets import make, mixed_fleet
from tests.pairwise import pairwise
from tests.unit.small import card, random

RULES = ("geometric_median", "median", "trimmed_mean", "krum", "multi_krum")


class Spy:
    """The weighted mean, with a look at what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Tensor, Tensor]] = []

    def __call__(self, points: Tensor, weights: Tensor) -> Tensor:
        self.asked.append((points, weights))
        share = weights / weights.sum(0).clamp_min(1e-9)
        return (points * share[..., None]).sum(0)


def sent(*states: State, rule: Any) -> Replies[State]:
    cards = [card(samples=n + 1, id=n) for n in range(len(states))]
    return Replies(list(zip(cards, states, strict=True)), rule)


def same(up: Any) -> Any:
    return up


def test_a_whole_model_is_one_vector() -> None:
    spy = Spy()
    models = [State({"a": random(2, 3, seed=i), "b": random(4, seed=9 + i)}) for i in range(5)]
    found = sent(*models, rule=spy).mean(same, by=samples)
    ((points, weights),) = spy.asked
    assert points.shape == (5, 1, 10)
    assert weights.flatten().tolist() == [1, 2, 3, 4, 5]
    plain = sent(*models, rule=None).mean(same, by=samples)
    assert list(found) == list(plain)
    for key in plain:
        assert found[key].shape == plain[key].shape
        torch.testing.assert_close(found[key], plain[key])


def test_every_cohort_of_holders_is_a_vector_of_its_own() -> None:
    spy = Spy()
    one = State({"shared": torch.ones(2), "encoders.a.x": torch.ones(3)})
    other = State({"shared": torch.zeros(2), "encoders.b.x": torch.zeros(4)})
    found = sent(one, other, one, rule=spy).mean(same, by=uniform)
    assert [tuple(points.shape) for points, _ in spy.asked] == [(3, 1, 2), (2, 1, 3), (1, 1, 4)]
    assert sorted(found) == ["encoders.a.x", "encoders.b.x", "shared"]


def test_keys_of_other_weights_are_apart_and_holders_without_any_have_no_say() -> None:
    spy = Spy()
    model = State({"encoders.a.x": torch.ones(1), "head.x": torch.ones(1)})
    sent(model, model, rule=spy).mean(same, by=lambda c, p: presence(c, p) if p[0] == "h" else c.id)
    assert [w.flatten().tolist() for _, w in spy.asked] == [[1, 2], [1]]


def test_a_sum_is_so_many_times_the_centre() -> None:
    models = [State({"x": torch.tensor([float(v)])}) for v in (1, 2, 1000)]
    total = sent(*models, rule=RobustConfig(rule="median").make()).sum(same)
    assert total["x"].tolist() == [6]
    assert sent(*models, rule=None).sum(same)["x"].tolist() == [1003]
    assert sent(*models, rule=RobustConfig(rule="median").make()).sum(lambda up: 2.5) == 7.5


def test_classes_count_where_they_are() -> None:
    """Two of three have class 1; the third says nothing on it rather than zero."""
    rows = [
        torch.tensor([[2.0], [6.0]]),
        torch.tensor([[4.0], [16.0]]),
        torch.tensor([[90.0], [0]]),
    ]
    counts = [torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])]
    ups = [(card(id=i), pair) for i, pair in enumerate(zip(rows, counts, strict=True))]
    for rule, expected in ((None, [32.0, 5.5]), (RobustConfig(rule="median").make(), [4.0, 5.5])):
        mean, n = Replies(ups, rule).classwise(lambda up: up[0], lambda up: up[1])
        assert mean.flatten().tolist() == expected
        assert n.tolist() == [3, 4]
    chosen, _ = Replies(ups).classwise(lambda up: up[0], lambda up: up[1], GeometricMedian())
    assert chosen[0].item() == pytest.approx(4)


def test_classes_by_modality_over_those_who_have_it() -> None:
    one = State({"a": torch.tensor([[1.0], [0.0]]), "b": torch.tensor([[9.0], [9.0]])})
    other = State({"a": torch.tensor([[3.0], [0.0]])})
    counts = State({"a": torch.tensor([1.0, 0.0]), "b": torch.ones(2)})
    ups = [(card(id=0), (one, counts)), (card(id=1), (other, counts.pick(["a"])))]
    mean, n = Replies(ups).classwise(lambda up: up[0], lambda up: up[1])
    assert {m: t.flatten().tolist() for m, t in mean.items()} == {"a": [2, 0], "b": [9, 9]}
    assert n["a"].tolist() == [2, 0]


def test_a_rule_needs_single_messages_which_may_be_refused() -> None:
    class SumsOnly(Replies[Any]):
        def each(self) -> Any:
            raise PermissionError

    ups = [(card(), State({"x": torch.ones(2)}))]
    assert SumsOnly(ups).mean(same, by=uniform)["x"].tolist() == [1, 1]
    with pytest.raises(PermissionError):
        SumsOnly(ups, GeometricMedian()).mean(same, by=uniform)
    with pytest.raises(PermissionError):
        SumsOnly(ups).classwise(
            lambda up: up["x"][:, None], lambda up: torch.ones(2), GeometricMedian()
        )


def ways(name: str) -> tuple[tuple[str, ...]]:
    """How a method asks for what its clients sent: a rule acts there, and sees nothing else."""
    kinds = [kind.__module__ for kind in find("methods", name).__mro__]
    modules = [importlib.import_module(kind) for kind in kinds if ".methods." in kind]
    source = "".join(inspect.getsource(module) for module in modules)
    return (tuple(way for way in ("mean", "sum", "classwise", "each") if f"ups.{way}(" in source),)


@pytest.mark.slow
@pairwise({"name": SENDING, "rule": RULES}, {"name": ways})
def test_every_way_to_aggregate_takes_every_rule(name: str, rule: Any) -> None:
    plan = Plan(rounds=1, workers=1, eval_every=0)
    robust = RobustConfig(rule=rule).make()
    with Run(mixed_fleet(), make(name, max_steps=1), plan, rule=robust) as run:
        (record,) = list(run)
    assert not record.refused
    assert record.scores
