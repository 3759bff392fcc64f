"""The ConvNets of FedAPA and the mean over sensors: sizes and shapes as in Table II, windows of all
kinds, and features that reach the embedding untouched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis import Batch, CommunisError, Streams
from communis.core.groups import groups
from communis.methods.fedbn import is_norm
from communis.models.convnet import ConvNet, LargeConvNet4, MiddleConvNet4, TinyConvNet4
from communis.models.fusion import Fusion, Mean
from communis.models.network import Network, initialise
from communis.models.zoo import CONVNETS, PURPOSE, ZOO, Architecture, architecture
from tests.unit.small import batch, random, same_bits

CSI = {"csi": (1, 1000, 242)}
BLOCKS = [(500, 121), (250, 61), (125, 31), (63, 16), (32, 8)]
CHANNELS = {
    "tiny_convnet4": [256],
    "middle_convnet4": [16, 32],
    "large_convnet4": [16, 32, 64, 128, 256],
}


def built(kind: Architecture, outputs: int = 3, **shapes: tuple[int, ...]) -> Network:
    model = kind.build(shapes, outputs)
    initialise(model, Streams(0))
    return model


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def on(model: Network, windows: int = 4, **changes: Any) -> Batch:
    inputs = {m: random(windows, *shape) for m, shape in model.shapes.items()}
    here = {m: torch.ones(windows, dtype=torch.bool) for m in inputs}
    return replace(Batch(inputs, here, torch.arange(windows) % 3), **changes)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("tiny_convnet4", 7_956), ("middle_convnet4", 18_436), ("large_convnet4", 463_748)],
)
def test_sizes_are_those_of_table_ii(name: str, expected: int) -> None:
    assert size(ZOO[name].build(CSI, 20)) == expected
    assert size(ZOO[name].build(CSI, 21)) == expected + 257


@pytest.mark.parametrize("name", CONVNETS)
def test_blocks_have_the_shapes_of_table_ii(name: str) -> None:
    model, seen = built(ZOO[name], **CSI).eval(), []
    encoder = model.encoders["csi"]
    for block in encoder.blocks:
        block.register_forward_hook(lambda module, inputs, output: seen.append(output.shape))
    with torch.no_grad():
        output = model(on(model, windows=1))
    assert seen == [(1, c, *places) for c, places in zip(CHANNELS[name], BLOCKS, strict=False)]
    assert output.features["csi"].shape == output.embedding.shape == (1, 256)
    assert [b.norm.num_features for b in encoder.blocks] == CHANNELS[name]
    assert all(b.conv.bias is None for b in encoder.blocks)


def test_rows_and_columns_may_change_places() -> None:
    """Subcarriers x packets costs what packets x subcarriers costs, and gives the same features if
    the kernels are transposed too."""
    one, other = (MiddleConvNet4(2, 4, axes=2).eval() for _ in range(2))
    initialise(one, Streams(0))
    other.load_state_dict({k: t.mT if t.ndim == 4 else t for k, t in one.state_dict().items()})
    x = random(3, 2, 12, 7)
    torch.testing.assert_close(one(x), other(x.mT))


def plain(encoder: ConvNet, x: Tensor) -> Tensor:
    """With torch's own layers in the plain layout and training statistics."""
    for block in encoder.blocks:
        weight = block.conv.weight
        if x.ndim == 3:
            y = F.conv1d(x, weight.squeeze(2), stride=2, padding=1)
        else:
            y = F.conv2d(x, weight, stride=2, padding=1)
        x = F.relu(F.batch_norm(y, None, None, block.norm.weight, block.norm.bias, training=True))
    pooled = x.flatten(2).mean(2)
    if isinstance(encoder.embed, nn.Identity):
        return pooled
    kernel = encoder.embed.weight[..., None, None]
    return F.conv2d(pooled[..., None, None], kernel, encoder.embed.bias).flatten(1)


@pytest.mark.parametrize("made", [TinyConvNet4, MiddleConvNet4, LargeConvNet4])
@pytest.mark.parametrize("shape", [(1, 33, 20), (3, 64, 64), (1, 65), (9, 128), (5, 40)])
def test_they_are_torch_s_layers_in_the_plain_layout(
    made: type[ConvNet], shape: tuple[int, ...]
) -> None:
    """Values and all gradients, also of windows as samples store them: channels last. In double
    precision, as BatchNorm over a few places magnifies rounding."""
    encoder = made(shape[0], 8, axes=2 if len(shape) == 3 else 1)
    initialise(encoder, Streams(0))
    encoder.double()
    x = random(4, *shape[1:], shape[0], dtype=torch.float64).movedim(-1, 1)
    results = []
    for function in (encoder, lambda t: plain(encoder, t)):
        encoder.zero_grad()
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        (out * random(*out.shape, seed=50)).sum().backward()
        grads = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
        assert leaf.grad is not None
        results.append([out.detach(), leaf.grad, *grads])
    ours, theirs = results
    assert ours[0].shape == (4, encoder.features) == (4, 16)
    assert len(ours) == len(theirs) == 2 + len(list(encoder.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", CONVNETS)
@pytest.mark.parametrize("shape", [(1, 40, 30), (3, 50), (420, 1)])
def test_gradients_reach_everything(name: str, shape: tuple[int, ...]) -> None:
    model = built(ZOO[name], a=shape)
    data = on(model, windows=6)
    F.cross_entropy(model(data).prediction, data.target).backward()
    for path, p in model.named_parameters():
        assert p.grad is not None, path
        assert bool(p.grad.any()), path


@pytest.mark.parametrize("name", CONVNETS)
def test_evaluation_uses_what_training_has_learned(name: str) -> None:
    model = built(ZOO[name], a=(2, 256))
    data = on(model, windows=16)
    for block in model.encoders["a"].blocks:
        block.norm.momentum = 1.0  # a single batch is all there is to remember
    fresh = model.eval()(data).embedding
    one = replace(data, inputs={"a": data.inputs["a"][:1]}, present={"a": data.present["a"][:1]})
    torch.testing.assert_close(model(one).embedding, fresh[:1])  # each window by itself
    trained = model.train()(data).embedding
    settled = model.eval()(data).embedding
    assert not torch.allclose(fresh, trained, atol=1e-3)
    # What is remembered is the variance with one value less in the divisor.
    torch.testing.assert_close(settled, trained, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", CONVNETS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (420, 1), (2, 8, 8)])
def test_a_single_small_window_trains(name: str, shape: tuple[int, ...]) -> None:
    """The last batch of an epoch, where a channel may have a single value."""
    model = built(ZOO[name], a=shape).train()
    data = on(model, windows=1)
    loss = F.cross_entropy(model(data).prediction, data.target)
    loss.backward()
    assert bool(loss.isfinite())


@pytest.mark.parametrize(
    ("name", "parameters"), list(zip(CONVNETS, (110_859, 18_603, 119_851), strict=True))
)
def test_rows_of_features_have_fully_connected_layers(name: str, parameters: int) -> None:
    """420 features and 11 classes: of three taps two would only ever see padding."""
    model = ZOO[name].build({"a": (420, 1)}, 11)
    assert size(model) == parameters
    kinds = {type(block.conv) for block in model.encoders["a"].blocks}
    assert kinds == {nn.Linear}


def test_the_three_differ_for_every_kind_of_window() -> None:
    for shape in ((420, 1), (9, 256), (1, 64, 128)):
        assert len({size(ZOO[name].build({"a": shape}, 3)) for name in CONVNETS}) == 3


@pytest.mark.parametrize("name", CONVNETS)
@pytest.mark.parametrize("embedding", [128, 512])
def test_other_embedding_sizes(name: str, embedding: int) -> None:
    """Through the last layer; the smallest has only its one convolution to widen."""
    kind = architecture(name, embedding=embedding)
    assert kind.name == f"{name}-{embedding}"
    model = built(kind, 20, csi=(1, 40, 30))
    assert model(on(model)).embedding.shape == (4, embedding)
    last = CHANNELS[name][-1]
    per_feature = 9 + 2 if name == "tiny_convnet4" else last + 1
    assert size(model) == size(ZOO[name].build(CSI, 20)) + (embedding - 256) * (per_feature + 20)


def test_names_tell_embedding_sizes_apart() -> None:
    assert architecture("cnn_gru_lite", embedding=96).name == "cnn_gru_lite96"
    assert architecture("cnn", embedding=64).name == "cnn-64"
    assert architecture("tiny_lora", embedding=32, weights="random").name == "tiny_lora-32"
    assert "width=9" in architecture("cnn", embedding=64, width=9).name


@pytest.mark.parametrize("name", [n for n, kind in ZOO.items() if not kind.pretrained])
def test_architectures_know_their_embedding_size(name: str) -> None:
    assert ZOO[name].build({"a": (2, 48)}, 3).embedding_size == ZOO[name].embedding_size


def test_every_architecture_has_a_purpose() -> None:
    assert PURPOSE.keys() == ZOO.keys()
    assert len(set(PURPOSE.values())) == len(ZOO)


def test_norms_go_by_their_name_and_blocks_are_groups() -> None:
    model = built(ZOO["middle_convnet4"], csi=(1, 16, 16))
    paths = list(model.by_path[0])
    assert [p for p in paths if is_norm(p)] == [
        f"encoders.csi.blocks.{i}.norm.{kind}" for i in (0, 1) for kind in ("weight", "bias")
    ]
    assert list(groups(paths)) == [
        "encoders.csi.blocks.0",
        "encoders.csi.blocks.1",
        "encoders.csi.embed",
        "head.out",
    ]


def test_sensors_of_all_kinds_meet_in_one_embedding() -> None:
    """A picture, a series, a few numbers and a point cloud."""
    shapes = {"acc": (3, 50), "csi": (2, 30, 20), "few": (420, 1), "lidar": (4, 9)}
    for name in CONVNETS:
        model = ZOO[name].build(shapes, 3, {"lidar": "points"})
        initialise(model, Streams(0))
        assert set(model.feature_sizes.values()) == {256}
        data = on(model, windows=5)
        output = model(data)
        assert output.embedding.shape == (5, 256)
        torch.testing.assert_close(
            output.embedding, torch.stack(list(output.features.values())).mean(0)
        )


@pytest.mark.parametrize("encoder", ["cnn1d", "cnn2d", "gru", "transformer", "tpn_mini", "lite"])
def test_other_encoders_give_as_many_features_as_the_embedding(encoder: Any) -> None:
    kind = Architecture(encoder, width=5, fusion="mean", embedding=24)
    model = built(kind, acc=(3, 50), depth=(1, 12, 12), few=(2, 3))
    assert set(model.feature_sizes.values()) == {24}
    assert model(on(model)).embedding.shape == (4, 24)


def test_convnets_also_fuse_by_blocks() -> None:
    model = built(Architecture("middle_convnet4", width=5, embedding=6), a=(3, 20), b=(1, 9, 9))
    assert set(model.feature_sizes.values()) == {10}
    assert model(on(model)).embedding.shape == (4, 6)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (architecture("tiny_convnet4", embedding=255), "tiny_convnet4-255: .* 255, .* even"),
        (Architecture("strided", fusion="mean"), "as many features as the embedding, 128"),
        (Architecture("wide", fusion="mean", embedding=28), "they have {'a': 24}"),
    ],
)
def test_features_that_are_no_embedding_are_refused(kind: Architecture, words: str) -> None:
    with pytest.raises(CommunisError, match=words):
        kind.build({"a": (2, 48)}, 3)


def masks(**flags: list[int]) -> dict[str, Tensor]:
    return {m: torch.tensor(values, dtype=torch.bool) for m, values in flags.items()}


def test_the_mean_is_over_the_sensors_that_are_there() -> None:
    h = {m: random(4, 5, seed=i) for i, m in enumerate("abc")}
    present = masks(a=[1, 1, 0, 0], b=[1, 0, 1, 0], c=[1, 1, 0, 0])
    fused, embedding = Mean(dict.fromkeys(h, 5))(h, present)
    expected = [(h["a"][0] + h["b"][0] + h["c"][0]) / 3, (h["a"][1] + h["c"][1]) / 2, h["b"][2]]
    torch.testing.assert_close(embedding, torch.stack([*expected, torch.zeros(5)]))
    assert same_bits(fused, embedding)


@pytest.mark.parametrize("others", [0, 1])
def test_a_single_sensor_s_features_and_gradients_stay_as_they_are(others: int) -> None:
    """Bit by bit, -0 and subnormal numbers too, whether others are unknown or absent."""
    values = torch.tensor([[-0.0, 0.0, 1e-45, -3.7, 1e38]]).repeat(2, 1).requires_grad_()
    h, present = {"a": values}, masks(a=[1, 1])
    if others:
        h["b"], present["b"] = torch.full((2, 5), float("nan")), masks(b=[0, 0])["b"]
    _, embedding = Mean(dict.fromkeys(h, 5))(h, present)
    upstream = torch.tensor([[-0.0, 1e-45, 2.5, -1.1, 3e38], [1.0, -1.0, 0.3, 0.0, 7e-39]])
    embedding.backward(upstream)
    assert values.grad is not None
    assert same_bits(values.grad, upstream)
    if not others:
        assert same_bits(embedding, values)
    else:
        assert torch.equal(embedding, values)


def test_the_mean_has_no_parameters_and_takes_any_sensor() -> None:
    mean = Mean({"a": 5, "b": 5})
    assert not list(mean.parameters())
    assert mean.open_to_any
    alone: Fusion = mean.fresh({"c": 7})
    assert isinstance(alone, Mean)
    assert alone.features == 7
    with pytest.raises(ValueError, match=r"mean fusion needs features of one size, got .*'b': 6"):
        Mean({"a": 5, "b": 6})


@pytest.mark.parametrize("training", [False, True])
def test_what_an_absent_sensor_holds_changes_nothing(training: bool) -> None:
    kind = Architecture("middle_convnet4", fusion="mean", embedding=6)

    def results(value: float) -> list[Tensor]:
        model = built(kind, a=(3, 16), b=(2, 16)).train(training)
        data = batch({"a": 3, "b": 2}, 6)
        present = masks(a=[1, 0, 0, 1, 1, 0], b=[0, 0, 1, 1, 1, 1])
        gone = {m: x.masked_fill(~present[m][:, None, None], value) for m, x in data.inputs.items()}
        output = model(replace(data, inputs=gone, present=present))
        F.cross_entropy(output.prediction, data.target).backward()
        assert not output.embedding[1].any()  # a window without any sensor
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        return [output.prediction, *model.buffers(), *grads]

    expected = results(0.0)
    for value in (7.0, float("nan")):
        found = results(value)
        assert len(found) == len(expected)
        assert all(map(same_bits, found, expected))


def test_a_sensor_that_nobody_measured_gets_exactly_zero_gradient() -> None:
    kind = Architecture("large_convnet4", fusion="mean", embedding=6)
    model = built(kind, a=(3, 16), b=(2, 16))
    data = replace(batch({"a": 3, "b": 2}, 6), present=masks(a=[0] * 6, b=[1] * 6))
    F.cross_entropy(model(data).prediction, data.target).backward()
    grads = {path: p.grad for path, p in model.named_parameters()}
    assert not any(g.any() for path, g in grads.items() if path.startswith("encoders.a."))
    assert all(g.any() for path, g in grads.items() if path.startswith("encoders.b."))
