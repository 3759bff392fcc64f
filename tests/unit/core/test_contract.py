"""Replies: key-wise reductions over the clients that hold a key. And the package's public names."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import pytest
import torch

import communis
from communis import Replies, State
from communis.core.contract import Card, modality_of
from communis.core.replies import Weight, presence, samples, uniform
from tests.unit.small import TINY_NORM, bound, card, client, network, random, same_bits, windows


def replies(*sent: tuple[int, Any]) -> Replies[Any]:
    """From (samples, message) per client."""
    return Replies([(card(samples=n, id=i), up) for i, (n, up) in enumerate(sent)])


def state(**values: float | list[float]) -> State:
    return State({path: torch.tensor(value) for path, value in values.items()})


def same(up: Any) -> Any:
    return up


THREE = (
    (1, state(x=[1.0, 2.0], y=10.0)),
    (3, state(x=[5.0, 6.0])),
    (4, state(y=40.0, z=7.0)),
)


def test_a_sum_runs_over_the_holders_of_each_key() -> None:
    total = replies(*THREE).sum(same)
    assert {k: v.tolist() for k, v in total.items()} == {"x": [6.0, 8.0], "y": 50.0, "z": 7.0}


def test_a_uniform_mean_divides_by_the_holders_of_each_key() -> None:
    mean = replies(*THREE).mean(same, by=uniform)
    assert {k: v.tolist() for k, v in mean.items()} == {"x": [3.0, 4.0], "y": 25.0, "z": 7.0}


def test_a_mean_by_samples_weighs_the_holders_of_each_key() -> None:
    mean = replies(*THREE).mean(same, by=samples)
    # x: (1 * 1 + 3 * 5) / 4, (1 * 2 + 3 * 6) / 4; y: (1 * 10 + 4 * 40) / 5
    assert {k: v.tolist() for k, v in mean.items()} == {"x": [4.0, 5.0], "y": 34.0, "z": 7.0}


def test_pick_chooses_the_field() -> None:
    @dataclass(frozen=True)
    class Up:
        w: State
        n: float

    ups = replies((1, Up(state(a=1.0), 2.0)), (1, Up(state(a=3.0), 4.0)))
    assert ups.sum(lambda up: up.w)["a"].item() == 4.0
    assert ups.sum(lambda up: up.n) == 6.0
    assert ups.mean(lambda up: up.w * up.n, by=uniform)["a"].item() == 7.0


def test_tensors_and_floats_reduce_to_their_own_kind() -> None:
    tensors = replies((1, torch.tensor([1.0, 2.0])), (3, torch.tensor([5.0, 10.0])))
    assert tensors.sum(same).tolist() == [6.0, 12.0]
    assert tensors.mean(same, by=uniform).tolist() == [3.0, 6.0]
    assert tensors.mean(same, by=samples).tolist() == [4.0, 8.0]
    counts = replies((1, torch.tensor([1, 0])), (1, torch.tensor([2, 5]))).sum(same)
    assert same_bits(counts, torch.tensor([3, 5]))
    floats = replies((1, 1.0), (3, 5.0))
    for found, expected in (
        (floats.sum(same), 6.0),
        (floats.mean(same, by=uniform), 3.0),
        (floats.mean(same, by=samples), 4.0),
    ):
        assert type(found) is float
        assert found == expected


@pytest.mark.parametrize("by", [uniform, samples])
def test_one_holder_keeps_its_bits(by: Weight) -> None:
    sent = State({"x": random(50), "only": random(50, seed=1) * 1e-30})
    others = [(7, State({"x": random(50, seed=s)})) for s in (2, 3)]
    mean = replies((3, sent), *others).mean(same, by=by)
    assert same_bits(mean["only"], sent["only"])
    alone = replies((3, sent)).mean(same, by=by)
    assert all(same_bits(alone[path], sent[path]) for path in sent)
    assert all(same_bits(replies((3, sent)).sum(same)[path], sent[path]) for path in sent)


@pytest.mark.parametrize("by", [uniform, samples])
def test_equal_values_keep_their_bits(by: Weight) -> None:
    value = random(200) * torch.logspace(-20, 20, 200)
    sent = [(n, State({"x": value.clone()})) for n in (3, 7, 1, 11, 2, 5, 13)]
    assert same_bits(replies(*sent).mean(same, by=by)["x"], value)
    tensors = [(n, value.clone()) for n in (3, 7, 1)]
    assert same_bits(replies(*tensors).mean(same, by=by), value)


def test_floats_keep_their_bits() -> None:
    assert replies((1, 0.1)).mean(same, by=uniform) == 0.1
    assert replies((1, 0.1), (2, 0.1)).mean(same, by=samples) == 0.1
    assert replies((1, 16_777_216.0), (1, 1.0)).sum(same) == 16_777_217.0


def test_a_mean_is_accurate_over_many_clients() -> None:
    """A running mean in float32 must not drift: 500 clients against float64."""
    stack, weights = random(500, 20) + 100, torch.arange(1, 501)
    sent = [(int(n), State({"x": row})) for n, row in zip(weights, stack, strict=True)]
    mean = replies(*sent).mean(same, by=samples)["x"]
    exact = (stack.double() * weights[:, None]).sum(0) / weights.sum()
    torch.testing.assert_close(mean.double(), exact, rtol=1e-5, atol=0)


def test_a_mean_lies_within_the_values() -> None:
    stack = random(50, 300)
    sent = [(n % 5 + 1, State({"x": row})) for n, row in enumerate(stack)]
    mean = replies(*sent).mean(same, by=samples)["x"]
    assert bool((mean >= stack.amin(0)).all() and (mean <= stack.amax(0)).all())


def test_the_result_does_not_depend_on_other_keys_or_their_order() -> None:
    """What one path reduces to is its holders' business alone, to the bit."""
    a, b = random(30), random(30, seed=1)
    plain = replies((2, State({"x": a})), (5, State({"x": b})))
    crowded = replies(
        (2, State({"w": random(3, seed=5), "x": a})),
        (9, State({"w": random(3, seed=6)})),
        (5, State({"x": b, "w": random(3, seed=7), "v": b})),
    )
    for by in (uniform, samples):
        assert same_bits(
            plain.mean(same, by=by)["x"],
            crowded.mean(same, by=by)["x"],
        )
    assert same_bits(plain.sum(same)["x"], crowded.sum(same)["x"])


def test_the_order_of_clients_matters_only_to_rounding() -> None:
    sent = [(n, State({"x": random(10, seed=n)})) for n in (1, 2, 3, 4)]
    means = [replies(*order).mean(same, by=samples)["x"] for order in permutations(sent)]
    for mean in means[1:]:
        torch.testing.assert_close(mean, means[0], rtol=1e-5, atol=1e-6)


def test_reducing_leaves_the_messages_alone() -> None:
    sent = [(n, State({"x": random(5, seed=n)})) for n in (1, 2, 3)]
    before = [up["x"].clone() for _, up in sent]
    first = replies(*sent)
    first.sum(same), first.mean(same, by=samples)
    assert all(same_bits(up["x"], old) for (_, up), old in zip(sent, before, strict=True))


def test_a_holder_without_samples_has_no_weight() -> None:
    sent = ((0, state(x=[9.0])), (2, state(x=[1.0])), (0, state(x=[5.0])))
    assert replies(*sent).mean(same, by=samples)["x"].tolist() == [1.0]


def test_a_key_that_only_holders_without_samples_have_is_left_out() -> None:
    mean = replies((0, state(x=[1.0])), (0, state(x=[3.0]))).mean(same, by=samples)
    assert len(mean) == 0


def test_nobody_gives_an_empty_state_and_each_shows_every_message() -> None:
    assert len(Replies([])) == 0
    assert len(Replies[State]([]).mean(same, by=samples)) == 0
    ups = replies(*THREE)
    assert len(ups) == 3
    assert [(c.id, c.samples) for c, _ in ups.each()] == [(0, 1), (1, 3), (2, 4)]
    assert [up for _, up in ups.each()] == [up for _, up in THREE]


def test_a_client_draws_from_its_own_stream_of_the_round() -> None:
    fleet = bound(windows((0, 0, 0, 0), owner=(0, 0, 1, 1)))

    def draw(id: int, round: int, name: str = "batches") -> float:
        return float(fleet.client(id, round).generator(name).random())

    assert draw(0, 1) == draw(0, 1)
    assert len({draw(0, 1), draw(1, 1), draw(0, 2), draw(1, 2), draw(0, 1, "noise")}) == 5


def test_the_log_of_a_client_is_its_own() -> None:
    one, two = client(), client()
    one.log["x"] = 1.0
    assert two.log == {}


def test_by_path_divides_parameters_from_persistent_buffers() -> None:
    model = network(TINY_NORM, {"a": 2})
    model.private["scratch"] = torch.nn.Module()
    model.private["scratch"].register_buffer("gone", torch.zeros(2), persistent=False)
    parameters, buffers = model.by_path
    assert set(parameters) | set(buffers) == set(model.state_dict())
    assert list(parameters) == [path for path, _ in model.named_parameters()]
    assert all("norm" in path for path in buffers)
    assert not any("gone" in path for path in buffers)


def test_public_names_are_sorted_and_there() -> None:
    assert communis.__all__ == sorted(communis.__all__)
    assert len(set(communis.__all__)) == len(communis.__all__)
    scope: dict[str, Any] = {}
    exec("from communis import *", scope)
    assert set(communis.__all__) <= set(scope)
    for name in communis.__all__:
        assert scope[name].__module__.startswith("communis."), name
        assert scope[name].__name__ == name


@pytest.mark.parametrize(
    ("path", "modality"),
    [
        ("encoders.acc.conv1.weight", "acc"),
        ("unimodal.left_arm_mag.out.bias", "left_arm_mag"),
        ("fusion.blocks.acc.weight", ""),
        ("head.out.bias", ""),
        ("private.encoders.x", ""),
    ],
)
def test_modality_of_a_path(path: str, modality: str) -> None:
    assert modality_of(path) == modality


def two_sorts() -> Replies[State]:
    """Ten windows of which two have `a`, and thirty of which none has."""
    path, shared = "encoders.a.w", "head.w"
    cards = [Card(i, ("a",), {}, n, {"a": m}, {}) for i, (n, m) in enumerate([(10, 2), (30, 0)])]
    sent = [state(**{path: [1.0], shared: [1.0]}), state(**{path: [5.0], shared: [5.0]})]
    third = Card(2, ("b",), {}, 60, {"b": 60}, {})
    return Replies([*zip(cards, sent, strict=True), (third, state(**{shared: [5.0]}))])


def test_presence_weighs_what_belongs_to_a_modality_by_the_windows_that_have_it() -> None:
    mean = two_sorts().mean(same, by=presence)
    assert mean["encoders.a.w"].tolist() == [1.0]
    assert mean["head.w"].tolist() == pytest.approx([0.1 * 1 + 0.9 * 5])


def test_coverage_is_the_holders_share_of_the_samples() -> None:
    assert two_sorts().coverage(same) == {"encoders.a.w": 0.4, "head.w": 1.0}
