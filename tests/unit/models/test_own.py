"""Networks of the user: how they are built, where training starts, and what is refused by name."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from communis import Batch, CommunisError, FedAvg, Fleet, Model, Output, Streams
from communis.fleet.clients import FleetClients
from communis.methods.fedbn import is_norm
from communis.models import own_sources
from communis.models.flops import forward_flops
from communis.models.network import encoded, initialise
from communis.models.own import Own
from communis.models.zoo import description
from tests.own_networks import Blocks, Sized, Summed, Tower
from tests.unit.small import batch, windows
from tests.unit.small import random as noise

SHAPES = {"a": (2, 12), "b": (1, 12)}


def built(
    kind: Own | type[nn.Module],
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    seed: int = 0,
    **settings: Any,
) -> Model:
    own = kind if isinstance(kind, Own) else Own(kind, settings)
    with Streams(seed).torch("build"):
        model = own.build(shapes, 3)
    initialise(model, Streams(seed))
    return model


def values(model: Model) -> dict[str, Tensor]:
    return {path: p.detach().clone() for path, p in model.by_path[0].items()}


def small(suites: list[tuple[str, ...]], *models: Any) -> FleetClients:
    made = windows((0,) * 4 * len(suites), owner=np.repeat(range(len(suites)), 4).tolist())
    return FleetClients(Fleet.of(made, suites=suites, models=models), FedAvg())


# --- building --------------------------------------------------------------------------------


def test_paths_of_an_encoder_are_those_of_every_encoder() -> None:
    model = built(Tower)
    assert {p for p in model.by_path[0] if p.startswith("encoders.a.")} == {
        f"encoders.a.{name}"
        for name in ("scale", "conv.weight", "conv.bias", "norm.weight", "norm.bias")
    }
    assert {"fusion.blocks.a.weight", "fusion.shared.bias", "head.out.bias"} < {*model.by_path[0]}
    assert model.feature_sizes == {"a": 6, "b": 6}
    assert model.embedding_size == 128
    assert model.shapes == SHAPES


def test_paths_of_a_whole_model_follow_its_mapping() -> None:
    model = built(Summed)
    parameters, buffers = model.by_path
    assert {path.partition(".")[0] for path in parameters} == {"encoders", "fusion", "head"}
    assert {"fusion.shared.gate", "head.weight", "encoders.b.scale"} < {*parameters}
    assert "encoders.a.norm.running_mean" in buffers
    assert (model.embedding_size, model.head_sizes) == (6, (6, 3))
    assert model.feature_sizes == {"a": 6, "b": 6}
    assert not model.open_to_any
    assert not [*model.unimodal, *model.private]


def test_the_longest_beginning_of_a_name_counts() -> None:
    class Two(Model):
        paths = {"net": "fusion.shared", "net.last": "head"}  # noqa: RUF012

    assert Two().path_of("net.last.weight") == "head.weight"
    assert Two().path_of("net.last") == "head"
    assert Two().path_of("net.lasting.weight") == "fusion.shared.lasting.weight"
    assert Two().path_of("network.weight") == "network.weight"


def test_normalisation_layers_can_be_told_by_their_paths() -> None:
    """By the rule of the zoo, which FedBN reads."""

    class Bare(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.bn = nn.BatchNorm1d(channels)
            self.layers = nn.Sequential(nn.Conv1d(channels, 2, 3), nn.GroupNorm(1, 2))

        def forward(self, x: Tensor) -> Tensor:
            return self.layers(self.bn(x)).mean(2)

    shapes = {"norm": (2, 12)}
    parameters, buffers = built(Bare, shapes).by_path
    assert [path for path in parameters if path.startswith("encoders") and is_norm(path)] == [
        f"encoders.norm.{layer}.norm.{name}"
        for layer in ("bn", "layers.1")
        for name in ("weight", "bias")
    ]
    assert "encoders.norm.bn.norm.running_mean" in buffers
    assert "encoders.a.norm.weight" in built(Tower).by_path[0]  # has such a name already
    assert "fusion.shared.norm.weight" in built(Blocks).by_path[0]


def test_encoders_may_differ_in_size() -> None:
    model = built(Sized)
    assert model.feature_sizes == {"a": 4, "b": 2}
    assert model(batch({"a": 2, "b": 1}, shape=(12,))).prediction.shape == (6, 3)
    with pytest.raises(CommunisError, match=r"Sized: fusion = 'mean' needs as many .*'b': 2"):
        built(Own(Sized, fusion="mean"))


@pytest.mark.parametrize(("fusion", "size"), [("blocks", 128), ("attention", 24), ("mean", 6)])
def test_the_fusions_of_the_zoo_take_own_encoders(fusion: Any, size: int) -> None:
    model = built(Own(Tower, fusion=fusion, hidden=(5,)))
    assert (model.embedding_size, model.head_sizes) == (size, (size, 5, 3))
    assert model(batch({"a": 2, "b": 1}, shape=(12,))).embedding.shape == (6, size)
    if fusion != "blocks":
        with pytest.raises(CommunisError, match=f"the embedding has {size} numbers"):
            built(Own(Tower, fusion=fusion, embedding=7))


def test_settings_and_embedding_reach_the_constructor() -> None:
    own = Own(Tower, {"width": 3}, embedding=5)
    assert own.name == "tests.own_networks:Tower-5-width=3"
    model = built(own)
    assert model.by_path[0]["fusion.blocks.a.weight"].shape == (5, 3)
    assert built(Own(Blocks, embedding=4)).embedding_size == 4
    with pytest.raises(CommunisError, match="Summed: embedding = 4 would change nothing"):
        built(Own(Summed, embedding=4))


def test_the_constructor_gets_what_it_has_parameters_for() -> None:
    seen: list[dict[str, Any]] = []

    class Curious(Tower):
        def __init__(
            self, modality: str, kind: str, shape: tuple[int, ...], *, channels: int, steps: int = 0
        ) -> None:
            super().__init__(channels)
            seen.append({"modality": modality, "kind": kind, "shape": shape, "steps": steps})

    with Streams().torch("build"):
        Own(Curious).build({"a": (2, 12)}, 3, {"a": "points"})
    assert seen[-1] == {"modality": "a", "kind": "points", "shape": (2, 12), "steps": 12}

    class Image(nn.Module):
        def __init__(self, channels: int, rows: int, columns: int) -> None:
            super().__init__()
            self.layer = nn.Linear(channels * rows * columns, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1))

    assert built(Image, {"a": (2, 4, 5)}).feature_sizes == {"a": 2}
    with pytest.raises(CommunisError, match=r"needs rows, which is not offered for a with windows"):
        built(Image, {"a": (2, 4)})


def test_any_keyword_reaches_a_constructor_that_takes_any() -> None:
    class Loose(Tower):
        def __init__(self, channels: int, **more: Any) -> None:
            super().__init__(channels, **more)

    assert built(Loose, width=4).feature_sizes == {"a": 4, "b": 4}


def test_lazy_layers_get_their_sizes_from_the_windows() -> None:
    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LazyLinear(4)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.flatten(1))

    assert built(Lazy).by_path[0]["encoders.a.layer.weight"].shape == (4, 24)
    assert bool(values(built(Lazy))["encoders.a.layer.weight"].ne(0).any())


def test_an_encoder_needs_no_parameters_and_may_tie_its_own() -> None:
    class Moments(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x.mean(2), x.square().mean(2)], 1)

    class Tied(nn.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.there = nn.Linear(channels, channels, bias=False)
            self.back = nn.Linear(channels, channels, bias=False)
            self.back.weight = self.there.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.back(torch.relu(self.there(x.mean(2))))

    assert not [p for p in built(Moments).by_path[0] if p.startswith("encoders.")]
    tied = built(Tied)
    assert [p for p in tied.by_path[0] if p.startswith("encoders.a")] == ["encoders.a.there.weight"]


def test_windows_reach_an_encoder_contiguous() -> None:
    class Viewing(nn.Module):
        def __init__(self, channels: int, steps: int) -> None:
            super().__init__()
            self.layer = nn.Linear(channels * steps, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.view(len(x), -1))

    client = small([("a", "b")], Viewing).client(0, 1, fresh=True)
    given = client.train.batch(torch.arange(3))
    assert not given.inputs["a"].is_contiguous()
    assert client.model(given).prediction.shape == (3, 3)


def test_features_of_absent_sensors_are_zero() -> None:
    given = batch({"a": 2, "b": 1}, shape=(12,))
    given.present["a"][:4] = False
    for kind in (Tower, Summed, Blocks):
        output = built(kind).eval()(given)
        assert not output.features["a"][:4].any()
        assert output.features["a"][4:].any()


def test_flops_are_those_of_its_layers() -> None:
    channels, steps, width, outputs = 2, 12, 6, 3
    convolution = 2 * 3 * channels * width * steps
    head = 2 * width * outputs
    assert forward_flops(built(Summed, {"a": (2, 12)}), {"a": (2, 12)}) == convolution + head
    fused = 2 * width * 128 + 2 * 128 * outputs
    assert forward_flops(built(Tower, {"a": (2, 12)}), {"a": (2, 12)}) == convolution + fused


# --- where training starts -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Tower, Summed, Blocks])
def test_the_seed_gives_the_bits(kind: type[nn.Module]) -> None:
    torch.rand(3)  # what was drawn before is of no account
    one, other = values(built(kind)), values(built(kind))
    assert all(torch.equal(one[path], other[path]) for path in one)
    elsewhere = values(built(kind, seed=1))
    assert any(not torch.equal(one[path], elsewhere[path]) for path in one)
    before = torch.get_rng_state()
    built(kind)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_constructor_decides_where_training_starts() -> None:
    model = values(built(Tower))
    assert not model["encoders.a.conv.bias"].any()
    assert 0 < float((model["encoders.a.scale"] - 1).abs().max()) < 1


@pytest.mark.parametrize("kind", [Tower, Summed, Blocks])
def test_clients_with_other_sensors_start_from_the_same_values(kind: type[nn.Module]) -> None:
    bound = small([("a", "b"), ("b",), ("a",)], kind)
    states = [values(bound.client(i, 1, fresh=True).model) for i in range(3)]
    for alone in states[1:]:
        assert all(torch.equal(alone[path], states[0][path]) for path in alone)
    assert not torch.equal(states[0]["encoders.a.scale"][:1], states[0]["encoders.b.scale"])
    assert {*bound.params} == {*states[0]}


def test_frozen_weights_are_the_same_for_all_clients_and_are_not_sent() -> None:
    class Frozen(Summed):
        def __init__(self, shapes: Any, outputs: int) -> None:
            super().__init__(shapes, outputs)
            self.gate.requires_grad_(False)

    bound = small([("a", "b"), ("b",)], Frozen)
    gates = [bound.client(i, 1, fresh=True).model.get_parameter("gate") for i in range(2)]
    assert torch.equal(*gates)
    assert "fusion.shared.gate" not in bound.params


# --- names, pickling, sources ----------------------------------------------------------------


def test_a_class_in_a_fleet_is_described() -> None:
    bound = small([("a",), ("b",)], Tower)
    assert [card.model for card in bound.cards] == ["tests.own_networks:Tower"] * 2
    assert bound.describe()["brought"]["networks"] == {
        "tests.own_networks:Tower": Own(Tower).digest
    }
    assert small([("a",), ("b",)], Tower, "cnn").cards[1].model == "cnn"


def test_a_description_is_pickled_by_name() -> None:
    own = Own(Tower, {"width": 3}, embedding=4)
    assert pickle.loads(pickle.dumps(own)) == own

    class Local(Tower):
        pass

    with pytest.raises(CommunisError, match=r"Local: a process that is not forked cannot import"):
        pickle.dumps(Own(Local))


def test_a_name_is_loaded_only_if_it_is_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("communis.core.plugins._trusted", {})
    with pytest.raises(CommunisError, match="is code outside of communis"):
        description("tests.own_networks:Tower")
    monkeypatch.setattr("communis.core.plugins._trusted", {"tests.own_networks:Tower": None})
    assert description("tests.own_networks:Tower") == Own(Tower)


def test_the_digest_is_of_the_files_that_are_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module of the class, and what it imports, but not torch."""
    monkeypatch.syspath_prepend(str(tmp_path))
    layers, network = tmp_path / "my_layers.py", tmp_path / "my_network.py"
    layers.write_text("from torch import nn\nclass Layer(nn.Linear):\n    pass\n")
    network.write_text("from my_layers import Layer\nclass Net(Layer):\n    pass\n")

    def digest() -> str:
        for name in ("my_layers", "my_network"):
            sys.modules.pop(name, None)
        return own_sources.digest(__import__("my_network").Net)

    first = digest()
    assert digest() == first
    layers.write_text(layers.read_text() + "SIZE = 3\n")
    second = digest()
    assert second != first
    network.write_text(network.read_text() + "SIZE = 3\n")
    assert digest() not in (first, second)
    for name in ("my_layers", "my_network"):
        sys.modules.pop(name)


# --- refusals --------------------------------------------------------------------------------


class Bad(nn.Module):
    """An encoder that works, to be spoiled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv1d(channels, 4, 3, padding=1)
        self.start()

    def start(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return self.end(self.conv(x))

    def end(self, h: Tensor) -> Tensor:
        return h.mean(2)


class Untouched(Bad):
    def end(self, h: Tensor) -> Tensor:
        return h


class Pair(Bad):
    def end(self, h: Tensor) -> Any:
        return h.mean(2), h


class Double(Bad):
    def end(self, h: Tensor) -> Tensor:
        return h.mean(2).double()


class Wobbling(Bad):
    def end(self, h: Tensor) -> Tensor:
        return h.mean(2)[:, : len(h)]


class Raising(Bad):
    def end(self, h: Tensor) -> Tensor:
        raise KeyError("no such thing")


class Leaving(Bad):
    def end(self, h: Tensor) -> Tensor:
        raise SystemExit(3)


class InPlace(Bad):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.mul_(2))


class Detached(Bad):
    def end(self, h: Tensor) -> Tensor:
        return h.detach().mean(2)


class AlwaysRandom(Bad):
    def end(self, h: Tensor) -> Tensor:
        return nn.functional.dropout(h).mean(2)


class FromNumpy(Bad):
    def end(self, h: Tensor) -> Tensor:
        return h.mean(2) * (float(np.random.rand()) if self.training else 1)  # noqa: NPY002


class Counting(Bad):
    calls = 0

    def end(self, h: Tensor) -> Tensor:
        self.calls += self.training
        return h.mean(2) * self.calls


class Norm(Bad):
    def start(self) -> None:
        self.norm = nn.BatchNorm1d(4)

    def end(self, h: Tensor) -> Tensor:
        return self.norm(h.mean(2))


class Dividing(Bad):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / x.std(2, keepdim=True))


class Wide(Bad):
    def start(self) -> None:
        self.double()


class Complex(Bad):
    def start(self) -> None:
        self.filter = nn.Parameter(torch.zeros(3, dtype=torch.complex64))


class Empty(Bad):
    def start(self) -> None:
        self.odd = nn.Parameter(torch.full((2,), float(np.random.rand())))  # noqa: NPY002


LAYER = nn.Linear(4, 4)


class Global(Bad):
    def start(self) -> None:
        self.layer = LAYER


class Sometimes(Bad):
    def start(self) -> None:
        self.layer = nn.LazyLinear(3)


class Named(Bad):
    def start(self) -> None:
        self.add_module("a@b", nn.Linear(2, 2))


class Failing(Bad):
    def start(self) -> None:
        raise ValueError("not today")


class Needy(Bad):
    def __init__(self, channels: int, depth: int) -> None:
        super().__init__(channels)


class Early(nn.Module):
    def __init__(self) -> None:
        self.layer = nn.Linear(2, 2)


class Extra(Bad):
    def get_extra_state(self) -> Any:
        return "more"

    def set_extra_state(self, state: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Untouched, r"returned shape \(1, 4, 12\) for 1 windows of a \(1, 2, 12\), .*flatten\(1\)"),
        (Pair, "returned tuple for a, expected a tensor"),
        (Double, "features is float64, expected float32"),
        (Wobbling, r"features have different sizes, \[1, 3\]"),
        (Raising, r"fails in evaluation on .* a .*KeyError: 'no such thing' \(test_own.py, line"),
        (Leaving, "SystemExit: 3"),
        (InPlace, r"changes the windows of a in place.*x = x \* 2"),
        (Detached, r"no gradient reaches its parameters .*leave detach\(\)"),
        (AlwaysRandom, "in evaluation .* are random: draw in training only"),
        (FromNumpy, "draw from torch, not from numpy or random"),
        (Counting, "keep no values between calls outside of buffers"),
        (Norm, r"fails in training .* BatchNorm has no statistics: .*LayerNorm"),
        (Dividing, "gives NaN or infinity .* zero throughout.*: add a small number"),
        (Wide, r"conv\.weight is float64; models are trained and sent as float32"),
        (Complex, "filter is complex64; models are trained"),
        (Empty, "sets odd to other values each time although the seed is the same"),
        (Global, r"two networks share layer\.weight, .*create it in __init__"),
        (Sometimes, "its lazy layer layer is not used by the first windows"),
        (Named, "has a character that paths cannot have"),
        (Failing, r"fails when it is built for a: ValueError: not today \(test_own.py, line"),
        (Needy, r"its constructor needs depth, .*a value in \[fleet\.own\]"),
        (Early, r"fails when it is built for a: AttributeError: cannot assign module before"),
        (Extra, "its state has _extra_state, which is no tensor"),
    ],
)
def test_an_encoder_that_cannot_work_is_refused(kind: type[nn.Module], words: str) -> None:
    with pytest.raises(CommunisError, match=f"models: .*{kind.__name__}: .*{words}"):
        built(kind)


def test_what_is_no_class_of_networks_is_refused() -> None:
    for kind, words in (
        (Tower(2), r"got a network \(Tower\); give its class"),
        (dict, "dict is no class that derives from torch.nn.Module"),
        (len, "len is no class"),
        (3, "3 is no class"),
    ):
        with pytest.raises(CommunisError, match=words):
            Fleet.of(windows(), models=(kind,))


def test_settings_that_do_not_fit_are_refused() -> None:
    for settings, words in (
        ({"depth": 3}, "its constructor has no depth; it has channels, width"),
        ({"channels": 3}, "its setting channels is given by the fleet"),
        ({"width": {"a": 3}}, "a number, a text or a list, no table"),
        ({"width": {3}}, "its settings may be numbers"),
    ):
        with pytest.raises(CommunisError, match=words):
            Own(Tower, settings)
    assert Own(Tower, {"width": [3, 4]}).settings == (("width", (3, 4)),)
    with pytest.raises(CommunisError, match="Summed: a whole model brings its own fusion and head"):
        Own(Summed, hidden=(3,))


class Unplaced(Summed):
    paths = {"towers": "encoders", "classifier": "head"}  # noqa: RUF012


class Twice(Summed):
    paths = {**Summed.paths, "other": "head"}  # noqa: RUF012

    def __init__(self, shapes: Any, outputs: int) -> None:
        super().__init__(shapes, outputs)
        self.other = nn.Linear(2, 2)


class TiedParts(Summed):
    def __init__(self, shapes: Any, outputs: int) -> None:
        super().__init__(shapes, outputs)
        first, second = (self.towers[m].conv for m in ("a", "b"))
        second.bias = first.bias


class Hidden(Summed):
    def __init__(self, shapes: Any, outputs: int) -> None:
        super().__init__(shapes, outputs)
        self.mark = nn.Linear(2, 2)  # type: ignore[assignment]


class NoOutput(Summed):
    def forward(self, batch: Batch) -> Any:
        return super().forward(batch).prediction


class OneLess(Summed):
    def forward(self, batch: Batch) -> Output:
        out = super().forward(batch)
        return Output({"a": out.features["a"]}, out.fused, out.embedding, out.prediction)


class Narrow(Summed):
    def forward(self, batch: Batch) -> Output:
        out = super().forward(batch)
        return Output(out.features, out.fused, out.embedding, out.prediction[:, :2])


class NeverAbsent(Summed):
    def forward(self, batch: Batch) -> Output:
        here = {m: torch.ones_like(p) for m, p in batch.present.items()}
        return super().forward(Batch(batch.inputs, here, batch.target))


class Nothing(Model):
    def forward(self, batch: Batch) -> Output:
        raise AssertionError


class Unwritten(Model):
    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(2, outputs)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Unplaced, r"gate has the path gate, which belongs to no part .*paths = \{\"gate\""),
        (Twice, r"classifier\.weight and other\.weight both have the path head\.weight"),
        (TiedParts, r"are one tensor in two parts of the model, encoders\.a and encoders\.b"),
        (Hidden, "its part mark has a name that communis.Model uses"),
        (NoOutput, "forward returned Tensor, expected communis.Output"),
        (OneLess, r"features of \['a'\], expected one entry for each of \['a', 'b'\]"),
        (Narrow, r"prediction of its output has shape \(1, 2\) for 1 windows, expected \(1, 3\)"),
        (NeverAbsent, "features of [ab] are not zero where the sensor is absent"),
        (Nothing, "it has no parameters to train"),
        (Unwritten, "fails in evaluation .*NotImplementedError"),
    ],
)
def test_a_whole_model_that_cannot_work_is_refused(kind: type[nn.Module], words: str) -> None:
    with pytest.raises(CommunisError, match=f"models: .*{kind.__name__}: .*{words}"):
        built(kind)


def test_features_whose_number_changes_later_are_refused() -> None:
    class Late(Bad):
        def end(self, h: Tensor) -> Tensor:
            return h.mean(2)[:, : 4 if len(h) < 5 else 3]

    model = built(Late)
    with pytest.raises(CommunisError, match=r"Late returned features of shape \(6, 3\) for a"):
        model(batch({"a": 2, "b": 1}, shape=(12,)))


def test_a_method_names_the_function_that_a_model_lacks() -> None:
    model = built(Blocks)
    with pytest.raises(CommunisError, match=r"this method needs branch\(modality\) of a model"):
        model.branch("a")
    joined = {"a": noise(2, 6), "b": noise(2, 6)}
    with pytest.raises(CommunisError, match=r"needs join\(features, present\) .* Nothing has none"):
        Nothing().join(joined, {})


def test_zeros_for_absent_sensors_are_for_models_that_know_them() -> None:
    class Filling(Summed):
        zero_fill: bool = False

    method = FedAvg(mask_mode="input_zero")
    made = windows((0,) * 4)
    assert FleetClients(Fleet.of(made, models=(Filling,)), method).cards
    assert FleetClients(Fleet.of(made, models=(Tower,)), method).cards
    with pytest.raises(CommunisError, match='Summed: mask_mode = "input_zero" feeds zeros'):
        _ = FleetClients(Fleet.of(made, models=(Summed,)), method).cards


def test_encoded_computes_present_windows_only() -> None:
    encoder = Tower(2).eval()
    x, here = noise(4, 2, 12), torch.tensor([True, False, True, False])
    features = encoded(encoder, x, here, 6)
    torch.testing.assert_close(features[here], encoder(x[here]))
    assert not features[~here].any()
    nothing = encoded(encoder, x, torch.zeros(4, dtype=torch.bool), 6)
    assert nothing.shape == (4, 6)
    assert nothing.requires_grad
