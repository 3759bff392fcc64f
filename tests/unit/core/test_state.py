"""State: the arithmetic of its docstring, copies in and out of a model, nothing in place."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from communis import State
from communis.core.contract import Model
from tests.unit.small import TINY, TINY_NORM, network, random, same_bits


def state(**values: float | list[float]) -> State:
    return State({path: torch.tensor(value) for path, value in values.items()})


def values(of: State) -> dict[str, Any]:
    return {path: tensor.tolist() for path, tensor in of.items()}


@pytest.fixture
def model() -> Model:
    return network(TINY_NORM, {"a": 2})


def test_sum_and_difference_keep_what_the_right_side_lacks() -> None:
    a, b = state(x=[1.0, 2.0], y=5.0), state(x=[10.0, 20.0])
    assert values(a + b) == {"x": [11.0, 22.0], "y": 5.0}
    assert values(a - b) == {"x": [-9.0, -18.0], "y": 5.0}


@pytest.mark.parametrize("op", ["__add__", "__sub__"])
def test_a_path_that_only_the_right_side_has_is_an_error_that_names_it(op: str) -> None:
    with pytest.raises(KeyError, match=r"left State has no tensor at z1, z2"):
        getattr(state(x=1.0), op)(state(z1=1.0, x=1.0, z2=1.0))


def test_products_and_quotients_take_a_state_with_every_path_or_more() -> None:
    a, b = state(x=[2.0, 4.0], y=6.0), state(x=2.0, y=3.0, z=0.0)
    assert values(a * b) == {"x": [4.0, 8.0], "y": 18.0}
    assert values(a / b) == {"x": [1.0, 2.0], "y": 2.0}


@pytest.mark.parametrize("op", ["__mul__", "__truediv__"])
def test_scaling_by_a_state_that_lacks_a_path_is_an_error_that_names_it(op: str) -> None:
    with pytest.raises(KeyError, match=r"right State has no tensor at x, z"):
        getattr(state(x=1.0, y=1.0, z=1.0), op)(state(y=1.0))


def test_numbers_apply_to_every_path_from_both_sides() -> None:
    a = state(x=[1.0, 2.0], y=4.0)
    assert values(a + 1) == values(1 + a) == {"x": [2.0, 3.0], "y": 5.0}
    assert values(a - 1) == {"x": [0.0, 1.0], "y": 3.0}
    assert values(a * 2) == values(2 * a) == {"x": [2.0, 4.0], "y": 8.0}
    assert values(a / 2) == {"x": [0.5, 1.0], "y": 2.0}
    assert values(sum([a, a], 0.0)) == {"x": [2.0, 4.0], "y": 8.0}


def test_a_number_minus_a_state_is_not_silently_reversed() -> None:
    with pytest.raises(TypeError):
        1 - state(x=1.0)


def test_operations_leave_their_operands_alone() -> None:
    a, b = state(x=[1.0, 2.0], y=3.0), state(x=[5.0, 6.0], y=7.0)
    for result in (a + b, a - b, a * b, a / b, a | b, a.zeros(), a.map(torch.exp), a * 3):
        assert result is not a
    assert values(a) == {"x": [1.0, 2.0], "y": 3.0}
    assert values(b) == {"x": [5.0, 6.0], "y": 7.0}


def test_a_state_cannot_be_changed_from_outside() -> None:
    source = {"x": torch.ones(1)}
    made = State(source)
    source["y"] = torch.ones(1)
    del source["x"]
    assert list(made) == ["x"]
    with pytest.raises(TypeError):
        made["x"] = torch.zeros(1)
    with pytest.raises(TypeError):
        del made["x"]
    with pytest.raises(AttributeError):
        made.extra = 1


def test_union_lets_the_right_side_win() -> None:
    assert values(state(x=1.0, y=2.0) | state(y=3.0, z=4.0)) == {"x": 1.0, "y": 3.0, "z": 4.0}


def test_pick_follows_the_order_of_the_paths_and_skips_what_is_not_here() -> None:
    picked = state(x=1.0, y=2.0, z=3.0).pick(["z", "nowhere", "x"])
    assert list(picked) == ["z", "x"]
    assert values(picked) == {"z": 3.0, "x": 1.0}
    assert list(state(x=1.0, y=2.0, z=3.0).pick({"y": (), "x": ()})) == ["y", "x"]


def test_norm_is_that_of_one_long_vector() -> None:
    a = State({"m": random(3, 4), "v": random(5, seed=1), "s": torch.tensor(2.0)})
    joined = torch.cat([tensor.flatten() for tensor in a.values()])
    assert a.norm().item() == pytest.approx(joined.norm().item(), rel=1e-6)
    assert state(x=[3.0, 0.0], y=-4.0).norm().item() == 5.0
    assert State().norm().item() == 0.0
    assert State().norm().shape == ()


def test_zeros_keep_type_and_shape() -> None:
    zeros = State({"n": torch.tensor(7), "w": torch.ones(2, 3, dtype=torch.float64)}).zeros()
    assert same_bits(zeros["n"], torch.tensor(0))
    assert same_bits(zeros["w"], torch.zeros(2, 3, dtype=torch.float64))


def test_repr_says_the_size_and_no_values() -> None:
    assert repr(state(x=[1.0, 2.0], y=3.0)) == "State(2 paths, 3 numbers)"


def test_pickling_keeps_order_and_bits() -> None:
    a = State({"z": random(3), "a": random(2, seed=1)})
    b = pickle.loads(pickle.dumps(a))
    assert list(b) == ["z", "a"]
    assert all(same_bits(a[path], b[path]) for path in a)


def test_of_copies_parameters_without_their_graph(model: Model) -> None:
    taken = State.of(model)
    assert list(taken) == [path for path, _ in model.named_parameters()]
    assert not any(tensor.requires_grad for tensor in taken.values())
    path = "head.out.bias"
    before = taken[path].clone()
    with torch.no_grad():
        dict(model.named_parameters())[path].add_(1)
    assert same_bits(taken[path], before)


def test_of_takes_the_named_paths_in_their_order(model: Model) -> None:
    paths = ["head.out.bias", "encoders.a.conv1.weight"]
    assert list(State.of(model, paths)) == paths
    with pytest.raises(KeyError, match="nowhere"):
        State.of(model, ["nowhere"])


def test_buffers_are_the_batchnorm_statistics_and_no_parameter(model: Model) -> None:
    taken = State.buffers(model)
    assert sorted(taken) == [
        f"encoders.a.norm{i}.{name}"
        for i in (1, 2)
        for name in ("num_batches_tracked", "running_mean", "running_var")
    ]
    assert taken["encoders.a.norm1.num_batches_tracked"].dtype is torch.int64
    assert not set(taken) & set(State.of(model))
    assert len(State.buffers(network(TINY, {"a": 2}))) == 0


def test_of_buffers_load_into_is_a_round_trip(model: Model) -> None:
    source = (State.of(model) | State.buffers(model)).map(lambda t: t + 3)
    count = "encoders.a.norm1.num_batches_tracked"
    source = source | {count: torch.tensor(2**53 + 1)}  # no float holds this one
    source.load_into(model)
    back = State.of(model) | State.buffers(model)
    assert list(back) == list(source)
    assert all(same_bits(back[path], source[path]) for path in source)
    assert back[count].item() == 2**53 + 1
    # The module itself sees it too, not only the lookup table.
    assert model.state_dict()[count].item() == 2**53 + 1


def test_load_into_touches_nothing_else(model: Model) -> None:
    before = {path: tensor.clone() for path, tensor in model.state_dict().items()}
    State({"head.out.bias": torch.full((3,), 9.0)}).load_into(model)
    for path, tensor in model.state_dict().items():
        expected = torch.full((3,), 9.0) if path == "head.out.bias" else before[path]
        assert same_bits(tensor, expected)
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())


def test_loading_copies_so_that_training_cannot_reach_the_state(model: Model) -> None:
    source = State.of(model)
    before = source["head.out.bias"].clone()
    source.load_into(model)
    with torch.no_grad():
        dict(model.named_parameters())["head.out.bias"].add_(1)
    assert same_bits(source["head.out.bias"], before)


def test_an_unknown_path_is_an_error_and_nothing_was_loaded(model: Model) -> None:
    before = State.of(model)
    strange = State({"head.out.bias": torch.zeros(3), "head.nowhere": torch.zeros(1)})
    with pytest.raises(KeyError, match=r"no tensor at head\.nowhere"):
        strange.load_into(model)
    assert all(same_bits(before[path], tensor) for path, tensor in State.of(model).items())


@pytest.mark.parametrize("shape", [(4,), (3, 3), (2, 3)])
def test_a_wrong_shape_is_an_error(model: Model, shape: tuple[int, ...]) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        State({"head.out.bias": torch.zeros(shape)}).load_into(model)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_a_shape_that_would_broadcast_is_an_error(model: Model, shape: tuple[int, ...]) -> None:
    with pytest.raises((RuntimeError, ValueError)):
        State({"head.out.bias": torch.zeros(shape)}).load_into(model)
