"""CoMFed's networks: their sizes, that the fast way to compute them is the plain one, and how
windows of other lengths, kinds and numbers join in."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis import Batch, CommunisError, FedAvg, Fleet, State, Streams
from communis.core.groups import groups, modality_of_group
from communis.fleet.clients import FleetClients
from communis.models.encoders import Dense
from communis.models.flops import Meter, forward_flops
from communis.models.network import Network, initialise
from communis.models.temporal import ChannelGRU, Coins, Grid, Strided, Temporal, TimeGRU, normed
from communis.models.zoo import ZOO, Architecture
from tests.unit.small import batch, random, same_bits, windows

NAMES = ("cnn_gru", "cnn_gru_lite", "cnn_gru_lite96")
IMU = {"acc": (3, 200), "gyro": (3, 200)}
Shapes = Mapping[str, tuple[int, ...]]


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def built(name: str, shapes: Shapes, kinds: Mapping[str, str] | None = None) -> Network:
    model = ZOO[name].build(shapes, 4, kinds or {})
    initialise(model, Streams(0))
    return model


def drawn(shapes: Shapes, size: int = 5) -> Batch:
    return Batch(
        {m: random(size, *shape, seed=i) for i, (m, shape) in enumerate(shapes.items())},
        {m: torch.ones(size, dtype=torch.bool) for m in shapes},
        torch.arange(size) % 4,
    )


@pytest.mark.parametrize(
    ("name", "one", "two"),
    [
        ("cnn_gru", 2_849_260, 2_868_988),
        ("cnn_gru_lite", 46_092, 57_100),
        ("cnn_gru_lite96", 43_564, 54_572),
    ],
)
def test_sizes(name: str, one: int, two: int) -> None:
    assert count(ZOO[name].build({"acc": (3, 200)}, 12)) == one
    assert count(ZOO[name].build(IMU, 12)) == two


def test_cnn_gru_has_the_layers_of_harmony() -> None:
    model = ZOO["cnn_gru"].build(IMU, 12)
    encoder, shared = model.encoders["acc"], model.fusion.shared
    assert isinstance(encoder, Grid)
    assert isinstance(shared, nn.ModuleDict)
    layers = [(getattr(encoder, f"conv{i}"), getattr(encoder, f"norm{i}")) for i in (1, 2, 3, 4)]
    assert [count(conv) + count(norm) for conv, norm in layers] == [448, 16_576, 2_144, 560]
    assert count(shared["gru"]) == 202_320
    assert count(shared["layer1"]) + count(shared["layer2"]) == 2_625_664
    assert count(model.head) == 1_548
    assert model.feature_sizes == {"acc": 16 * 198, "gyro": 16 * 198}
    assert [model.embedding_size, ZOO["cnn_gru_lite96"].build(IMU, 12).embedding_size] == [128, 96]


def plain_grid(encoder: Grid, x: Tensor) -> Tensor:
    """(B, channels, T) -> (B, 2 * width, T - 2) with torch's own layers in the plain layout."""
    x = x.mT.unsqueeze(1)
    for i in (1, 2, 3, 4):
        conv, norm = getattr(encoder, f"conv{i}"), getattr(encoder, f"norm{i}")
        x = F.conv2d(x, conv.weight.contiguous(), conv.bias)
        x = F.relu(F.batch_norm(x, None, None, norm.weight, norm.bias, True))
    return x.squeeze(3)


def plain_strided(encoder: Strided, x: Tensor) -> Tensor:
    for conv, norm in ((encoder.conv1, encoder.norm1), (encoder.conv2, encoder.norm2)):
        x = F.conv1d(x, conv.weight.squeeze(2), conv.bias, stride=2, padding=2)
        x = F.relu(F.batch_norm(x, None, None, norm.weight, norm.bias, True))
    return x


def plain_fusion(fusion: TimeGRU | ChannelGRU, x: Tensor) -> Tensor:
    """(B, channels, T) -> embedding."""
    shared = fusion.shared
    if isinstance(fusion, TimeGRU):
        x, layers = shared["gru"](x.mT)[0][:, -1], [shared["layer"]]
    else:
        x, layers = shared["gru"](x)[0].flatten(1), [shared["layer1"], shared["layer2"]]
    for layer in layers:
        norm = layer.norm
        x = F.relu(F.batch_norm(layer.linear(x), None, None, norm.weight, norm.bias, True))
    return x


@pytest.mark.parametrize("name", ["cnn_gru", "cnn_gru_lite"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4, 9])
def test_they_are_plain_layers(name: str, channels: int) -> None:
    """Values and all gradients, of windows as samples store them: channels last."""
    model = built(name, {"a": (channels, 21), "b": (channels, 21)})
    for encoder in model.encoders.values():
        if isinstance(encoder, Grid):
            encoder.dropout.eval()
    x = {m: random(7, 21, channels, seed=i).movedim(-1, 1) for i, m in enumerate("ab")}
    present = {"a": torch.tensor([1] * 6 + [0]).bool(), "b": torch.tensor([0] + [1] * 6).bool()}
    target = torch.arange(7) % 4

    def plain() -> Tensor:
        encode = plain_grid if name == "cnn_gru" else plain_strided
        a = encode(model.encoders["a"], x["a"][:6])  # type: ignore[arg-type]
        b = encode(model.encoders["b"], x["b"][1:])  # type: ignore[arg-type]
        joined = torch.cat([a[:1], (a[1:] + b[:5]) / 2, b[5:]])
        prediction: Tensor = model.head(plain_fusion(model.fusion, joined))  # type: ignore[arg-type]
        return prediction

    results = []
    for forward in (lambda: model(Batch(x, present, target)).prediction, plain):
        model.zero_grad()
        prediction = forward()
        F.cross_entropy(prediction, target).backward()
        results.append([prediction.detach()] + [p.grad for p in model.parameters()])
    for (path, _), ours, theirs in zip(
        [("prediction", None), *model.named_parameters()], *results, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=2e-5, msg=path)


def test_dropout_is_half_before_the_last_convolution_and_in_training_only() -> None:
    model = built("cnn_gru", {"a": (3, 40)})
    encoder = model.encoders["a"]
    x, seen = random(8, 3, 40), []
    for conv in (encoder.conv2, encoder.conv3, encoder.conv4):
        conv.register_forward_pre_hook(lambda _, args: seen.append(args[0]))  # type: ignore[arg-type]
    with Streams(0).torch("dropout"):
        out = encoder(x)
    encoder.eval()
    encoder(x)
    shares = [float((h > 0).float().mean()) for h in seen]
    assert shares[:3] == pytest.approx([0.25] * 3, abs=0.06)  # ReLU and dropout let a half through
    assert shares[3] > 0.4
    assert float((out > 0).float().mean()) > 0.4


def test_coins_are_fair_and_independent() -> None:
    coins, x = Coins(), torch.ones(40, 3, 67, 5).contiguous(memory_format=torch.channels_last)

    def tossed(seed: int) -> Tensor:
        with Streams(seed).torch("dropout"):
            out: Tensor = coins(x)
        return out

    found = tossed(0)
    assert found.unique().tolist() == [0.0, 2.0]
    assert found.is_contiguous(memory_format=torch.channels_last)
    heads = found.movedim(1, 3).flatten()[: 40_200 // 8 * 8].view(-1, 8) - 1  # as drawn
    torch.testing.assert_close(heads.T @ heads / len(heads), torch.eye(8), rtol=0, atol=0.06)
    assert heads.mean(0).abs().max() < 0.06  # four standard errors
    assert float((heads[1:] * heads[:-1]).mean().abs()) < 0.02
    assert same_bits(found, tossed(0))
    assert not torch.equal(found, tossed(1))
    assert coins.eval()(x) is x


def test_coins_take_any_number_of_values_in_any_layout() -> None:
    for shape in ((1, 1, 1, 1), (1, 3, 3, 1), (0, 2, 2, 2), (5, 2, 7, 1)):
        x = random(*shape).requires_grad_()
        out = Coins()(x)
        assert out.shape == shape
        assert torch.equal(out[out != 0], 2 * x[out != 0])
        out.sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.where(out != 0, 2.0, 0.0))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 128])
def test_every_window_length_has_an_encoder(name: str, steps: int) -> None:
    model = built(name, {"a": (2, steps)})
    of_series = Strided if name != "cnn_gru" else Grid if steps > 2 else Dense
    assert type(model.encoders["a"]) is of_series
    for size in (1, 3):
        output = model(drawn({"a": (2, steps)}, size))
        assert output.features["a"].shape == (size, model.feature_sizes["a"])
        assert bool(output.prediction.isfinite().all())


@pytest.mark.parametrize("name", NAMES)
def test_every_kind_of_window_joins_in_and_is_the_same_at_all_times(name: str) -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "acc": (3, 64), "beams": (64, 8), "cloud": (3, 20), "depth": (1, 12, 9), "heart": (1, 1),
    }  # fmt: skip
    model = built(name, shapes, {"cloud": "points", "depth": "image"})
    source = drawn(shapes)
    output = model(source)
    output.prediction.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    fusion = model.fusion
    assert isinstance(fusion, Temporal)
    for m in ("cloud", "depth"):
        assert output.features[m].shape == (5, fusion.channels)
        found = fusion.mean({m: output.features[m]}, source.present)
        assert found.shape == (5, fusion.steps, fusion.channels)
        torch.testing.assert_close(found, output.features[m][:, None].expand_as(found))


def test_shorter_sequences_are_stretched_in_time() -> None:
    fusion = TimeGRU({"a": 8, "b": 4}, 2, 3)
    here = torch.ones(1, dtype=torch.bool)
    b = torch.tensor([[0.0, 10.0, 4.0, 30.0]])  # two steps of two channels
    found = fusion.mean({"b": b}, {"b": here})
    # four steps at 0.25, 0.75, 1.25 and 1.75, known at 0.5 and 1.5
    expected = torch.tensor([[[0.0, 10.0], [1.0, 15.0], [3.0, 25.0], [4.0, 30.0]]])
    torch.testing.assert_close(found, expected)
    a = random(1, 8)
    both = fusion.mean({"a": a, "b": b}, {"a": here, "b": here})
    torch.testing.assert_close(both, (a.view(1, 4, 2) + expected) / 2)


def test_the_mean_is_over_the_sensors_that_are_there() -> None:
    fusion = ChannelGRU(dict.fromkeys("abc", 6), 2, 3)
    features = {m: random(4, 6, seed=i) for i, m in enumerate("abc")}
    rows = [[1, 1, 1], [1, 0, 1], [0, 1, 0], [0, 0, 0]]
    mask = torch.tensor(rows, dtype=torch.bool)
    found = fusion.mean(features, {m: mask[:, i] for i, m in enumerate("abc")}).flatten(1)
    a, b, c = features.values()
    torch.testing.assert_close(found[0], (a[0] + b[0] + c[0]) / 3)
    torch.testing.assert_close(found[1], (a[1] + c[1]) / 2)
    assert same_bits(found[2], b[2])
    assert same_bits(found[3], torch.zeros(6))


@pytest.mark.parametrize("made", [TimeGRU, ChannelGRU])
def test_nothing_a_masked_modality_holds_passes_the_fusion(made: type[Temporal]) -> None:
    """Even if its features are not zero."""
    fusion = made({"a": 6, "b": 6}, 2, 3)
    initialise(fusion, Streams(0))
    here = {"a": torch.tensor([1, 0, 1]).bool(), "b": torch.ones(3).bool()}
    a, b = random(3, 6), random(3, 6, seed=1)
    expected = fusion(features := {"a": a, "b": b}, here)
    for value in (0.0, 1e30, float("nan")):
        leaf = a.clone()
        leaf[1] = value
        leaf.requires_grad_()
        found = fusion({**features, "a": leaf}, here)
        assert all(same_bits(x, y) for x, y in zip(found, expected, strict=True))
        found[1].square().sum().backward()
        assert leaf.grad is not None
        assert not leaf.grad[1].any()


@pytest.mark.parametrize("made", [TimeGRU, ChannelGRU])
def test_the_order_of_modalities_makes_no_difference_and_new_ones_may_come(
    made: type[Temporal],
) -> None:
    fusion = made({"a": 6}, 2, 3).eval()
    features = {m: random(4, n, seed=n) for m, n in (("a", 6), ("new", 10), ("z", 2))}
    here = {m: random(4, seed=i) > 0 for i, m in enumerate(features)}
    assert fusion.open_to_any
    one = fusion(features, here)[1]
    other = fusion(dict(reversed(features.items())), here)[1]
    torch.testing.assert_close(one, other)


def test_features_that_are_no_sequence_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sequences of 4 channels, got \{'a': 6\}; use fusion"):
        TimeGRU({"a": 6}, 4, 3)
    with pytest.raises(CommunisError, match=r"cnn_gru takes windows of .*; a has \(3,\)"):
        ZOO["cnn_gru"].build({"a": (3,)}, 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_single_window_is_trained_with_running_statistics(name: str) -> None:
    shapes = {"a": (3, 24)}
    model = built(name, shapes)
    model(drawn(shapes, 6))
    encoder = model.encoders["a"]
    before = {k: v for k, v in State.buffers(model).items() if k.startswith("fusion.")}
    alone = drawn(shapes, 1)
    with Streams(1).torch("dropout"):
        output = model(alone)
    F.cross_entropy(output.prediction, alone.target).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    after = State.buffers(model)
    assert before
    assert all(torch.equal(after[k], v) for k, v in before.items())
    # The encoder has many values per channel: it goes on with the statistics of the batch.
    assert int(encoder.norm1.num_batches_tracked) == 2  # type: ignore[arg-type, union-attr]
    model.fusion.eval()
    expected = model.fusion(output.features, alone.present)[1]
    torch.testing.assert_close(output.embedding, expected)


def test_one_value_per_channel_says_nothing_about_its_spread() -> None:
    norm = nn.BatchNorm1d(2)
    norm.running_mean = torch.tensor([1.0, 2.0])
    norm.running_var = torch.tensor([4.0, 1.0])
    torch.testing.assert_close(
        normed(norm, torch.tensor([[3.0, 2.0]])), torch.tensor([[1.0, 0.0]]), rtol=1e-4, atol=1e-4
    )
    assert int(norm.num_batches_tracked or 0) == 0
    two = torch.tensor([[3.0, 2.0], [1.0, 4.0]])
    torch.testing.assert_close(
        normed(norm, two), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), rtol=1e-4, atol=1e-4
    )


def test_groups_are_the_layers_of_encoders_the_shared_part_and_the_head() -> None:
    found = groups(built("cnn_gru_lite", IMU).by_path[0])
    of_acc = [f"encoders.acc.{layer}" for layer in ("conv1", "norm1", "conv2", "norm2")]
    assert [g for g in found if modality_of_group(g) == "acc"] == of_acc
    assert [g for g in found if not modality_of_group(g)] == ["fusion.shared", "head.out"]
    assert len(groups(built("cnn_gru", IMU).by_path[0])) == 2 * 8 + 2


def test_floating_point_operations_are_counted_through_recurrent_layers() -> None:
    """By hand: 2 per multiply-add."""
    for two, shapes in enumerate(({"acc": (3, 200)}, IMU)):
        model = built("cnn_gru_lite", shapes)
        convolutions = 100 * 32 * 3 * 5 + 50 * 64 * 32 * 5
        rest = 50 * 3 * 64 * (64 + 64) + 64 * 128 + 128 * 4
        assert forward_flops(model, shapes) == 2 * ((1 + two) * convolutions + rest)
    model = built("cnn_gru", {"acc": (3, 200)})
    convolutions = 199 * 2 * 64 * 4 + 198 * (64 * 64 * 4 + 64 * 32 + 32 * 16)
    gru = 16 * 3 * 120 * (198 + 120 + 120 + 120)
    rest = 1920 * 1280 + 1280 * 128 + 128 * 4
    assert forward_flops(model, {"acc": (3, 200)}) == 2 * (convolutions + gru + rest)


@pytest.mark.parametrize("name", NAMES)
def test_training_costs_about_three_forward_passes(name: str) -> None:
    client = FleetClients(Fleet.of(windows(), models=(name,)), FedAvg()).client(0, 1, fresh=True)
    before = State.buffers(client.model)
    cost = Meter().per_window(
        client.model, lambda out, of: F.cross_entropy(out.prediction, of.target), client.train, ""
    )
    assert 1.7 < cost.backward / cost.forward < 2.1
    assert all(torch.equal(v, before[k]) for k, v in State.buffers(client.model).items())


KINDS = {
    "blocks": Architecture(width=4, embedding=6),
    "attention": Architecture(width=4, fusion="attention", hidden=(5,), units=7),
    "lora": Architecture("tiny", fusion="lora", embedding=6, weights="random"),
    "grid": Architecture("grid", width=2, fusion="channel_gru", embedding=6),
    "strided": Architecture("strided", width=4, fusion="time_gru", embedding=6),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_branch_is_the_second_half_of_a_network_of_one_sensor(name: str) -> None:
    shapes = {"a": (3, 16), "b": (2, 16)}
    both, alone = KINDS[name].build(shapes, 4), KINDS[name].build({"b": (2, 16)}, 4)
    both.unimodal["b"] = both.branch("b")
    initialise(both, Streams(0))
    initialise(alone, Streams(1))
    branch = both.unimodal["b"]
    shared = [p for p in alone.by_path[0] if not p.startswith("encoders.")]
    assert [p for p, t in branch.named_parameters() if t.requires_grad] == shared
    own = dict(both.fusion.named_parameters())
    assert all(t is not own.get(p) for p, t in branch.named_parameters())
    # With the same values it predicts the same.
    branch.load_state_dict(
        {p: t for p, t in alone.state_dict().items() if p.startswith(("fusion.", "head."))}
    )
    source = batch({"b": 2}, 4)
    output = alone.eval()(source)
    branch.eval()
    prediction = branch(output.features["b"])
    assert prediction.shape == (4, 4)
    assert same_bits(prediction, output.prediction)
    assert {
        modality_of_group(g) for g in groups(p for p in both.by_path[0] if "unimodal" in p)
    } == {"b"}


def test_branches_for_windows_of_other_lengths_are_those_of_a_client_with_one_sensor() -> None:
    """The size of recurrent layers depends on the length: that of the sensor, not of the suite."""
    shapes = {"acc": (3, 40), "ppg": (1, 20)}
    both, alone = built("cnn_gru", shapes), built("cnn_gru", {"ppg": (1, 20)})
    expected = {p: t.shape for p, t in alone.fusion.named_parameters()}
    found = both.branch("ppg").get_submodule("fusion")
    assert {p: t.shape for p, t in found.named_parameters()} == expected
    assert dict(both.fusion.named_parameters())["shared.gru.weight_ih_l0"].shape == (360, 38)


def test_a_model_knows_its_windows() -> None:
    model = ZOO["cnn"].build({"b": [2, 16], "a": (3, 8, 8)}, 3)
    assert model.shapes == {"a": (3, 8, 8), "b": (2, 16)}
    assert list(model.shapes) == ["a", "b"]
