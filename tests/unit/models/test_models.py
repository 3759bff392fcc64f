"""Networks: shapes, path names, masks that let nothing through, and starts that depend on the path
alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis import Batch, CommunisError, Model, Output, State, Streams
from communis.core.tasks import Classification
from communis.methods.fedrod import FedRoD
from communis.models.convpool import ConvPool
from communis.models.encoders import TPN, TPNMini, positions
from communis.models.fusion import Attention, Blocks
from communis.models.network import MLP, Network, initialise
from communis.models.sglt import Sglt
from communis.models.zoo import RECURRENT, TOKENS, ZOO, Architecture, architecture
from tests.pairwise import pairwise
from tests.unit.small import TINY, batch, network, random, same_bits, shapes

SETS: tuple[dict[str, int], ...] = ({"a": 3}, {"a": 3, "b": 2}, {"c": 1, "b": 2, "a": 3})
TWO = {"a": 3, "b": 2}
# Small relatives of every kind in the zoo, so that gradients stay cheap.
KINDS = {
    "blocks": Architecture(width=4, embedding=6),
    "attention": Architecture(width=4, fusion="attention", hidden=(5,)),
    "norm": Architecture(width=4, embedding=6, norm=True),
    "cnn2d": Architecture("cnn2d", width=4, embedding=6),
    "cnn2d_norm": Architecture("cnn2d", width=4, embedding=6, norm=True),
    "gru": Architecture("gru", width=4, embedding=6),
    "transformer": Architecture("transformer", width=4, embedding=6),
    "tpn_mini": Architecture("tpn_mini", width=4, fusion="attention", hidden=(5,), units=6),
    "lite": Architecture("lite", width=4, embedding=6),
    "wide": Architecture("wide", width=16, embedding=12),
    "lora": Architecture("tiny", fusion="lora", embedding=6, weights="random"),
    "grid": Architecture("grid", width=2, fusion="channel_gru", embedding=6),
    "strided": Architecture("strided", width=4, fusion="time_gru", embedding=6),
    "convnet": Architecture("middle_convnet4", fusion="mean", embedding=6),
    "sglt": Architecture("tokens", fusion="sglt", embedding=6, sglt=Sglt(heads=2)),
    "softmax": Architecture("tokens", fusion="softmax", embedding=6, sglt=Sglt(heads=2)),
    "graph": Architecture("tokens", fusion="graph", embedding=6, sglt=Sglt(heads=2, knn=3)),
}
# All that need no extra; pretrained ones with weights that were never trained.
NAMED = {
    name: replace(kind, weights="random") if kind.pretrained else kind
    for name, kind in ZOO.items()
    if kind.encoder != "moment"
}


def layers(name: str) -> tuple[str, str]:
    """What decides which shapes a named model takes; architectures differ in widths besides."""
    return NAMED[name].encoder, NAMED[name].fusion


def inputs(kind: Architecture, channels: Mapping[str, int], size: int = 6, seed: int = 0) -> Batch:
    return batch(channels, size, (9, 8) if kind.encoder == "cnn2d" else (16,), seed)


def masked(source: Batch, **present: list[int]) -> Batch:
    masks = {m: torch.tensor(flags, dtype=torch.bool) for m, flags in present.items()}
    return Batch(source.inputs, {**source.present, **masks}, source.target)


def refilled(source: Batch, modality: str, value: float) -> Batch:
    """The same with other content wherever the modality is masked."""
    x, here = source.inputs[modality], source.present[modality]
    other = torch.where(here.view(-1, *[1] * (x.ndim - 1)), x, torch.full_like(x, value))
    return Batch({**source.inputs, modality: other}, source.present, source.target)


def run(model: Model, source: Batch) -> Output:
    """With the same draws for dropout every time."""
    with Streams(5).torch("dropout"):
        return model(source)


def gradients(model: Model, source: Batch) -> dict[str, Tensor]:
    model.zero_grad()
    F.cross_entropy(run(model, source).prediction, source.target).backward()
    return {k: p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}


@pairwise({"name": list(NAMED), "channels": SETS}, {"name": layers})
def test_every_architecture_maps_every_modality_set(name: str, channels: dict[str, int]) -> None:
    kind = NAMED[name]
    model = network(kind, channels, outputs=5)
    output = model(inputs(kind, channels, 4))
    assert list(output.features) == sorted(channels)
    for m, h in output.features.items():
        assert h.shape == (4, model.feature_sizes[m])
        expected = 2 * kind.width
        if kind.fusion == "mean" or kind.fusion in TOKENS:  # 16 steps are four tokens
            expected = kind.embedding * (4 if kind.fusion in TOKENS else 1)
        assert h.shape[1] == expected or kind.fusion in RECURRENT
    assert output.embedding.shape == (4, model.embedding_size)
    assert output.prediction.shape == (4, 5)
    assert output.fused.shape[0] == 4
    assert bool(output.prediction.isfinite().all())
    assert model.head_sizes == (model.embedding_size, *kind.hidden, 5)


def test_architectures_of_one_fusion_share_the_embedding_size() -> None:
    sizes = {name: network(kind, {"a": 1}).embedding_size for name, kind in NAMED.items()}
    blocks = {name for name, kind in NAMED.items() if kind.fusion == "blocks"}
    assert {sizes[name] for name in blocks - {"wide"}} == {128}
    assert sizes["cnn_attention"] == sizes["tpn_mini"] == 4 * 64
    assert sizes["tpn"] == 4 * 96
    assert (sizes["wide"], sizes["tiny_lora"]) == (512, 64)
    assert {sizes[name] for name, kind in NAMED.items() if kind.fusion == "mean"} == {256}


@pytest.mark.parametrize("name", NAMED)
def test_paths_are_the_sharing_vocabulary(name: str) -> None:
    model = network(NAMED[name], TWO)
    paths = [path for part in model.by_path for path in part]
    prefixes = ["encoders.a.", "encoders.b.", "head."]
    if NAMED[name].fusion != "mean":
        prefixes += ["fusion.shared."]
    if NAMED[name].fusion in ("blocks", "lora"):
        prefixes += ["fusion.blocks.a.", "fusion.blocks.b."]
    for path in paths:
        assert sum(path.startswith(prefix) for prefix in prefixes) == 1, path
    for prefix in prefixes:
        assert any(path.startswith(prefix) for path in paths), prefix


def test_blocks_are_the_columns_of_one_linear_layer() -> None:
    model = network(TINY, TWO)
    output = model(batch(TWO))
    state = State.of(model)
    weight = torch.cat([state["fusion.blocks.a.weight"], state["fusion.blocks.b.weight"]], 1)
    joined = torch.cat([output.features["a"], output.features["b"]], 1)
    fused = F.linear(joined, weight, state["fusion.shared.bias"])
    torch.testing.assert_close(output.fused, fused)
    torch.testing.assert_close(output.embedding, F.relu(fused))


def test_cnn2d_takes_planes_and_stacks_of_planes() -> None:
    """(B, packets, subcarriers) is one plane: the same as with an axis for it."""
    model = network(ZOO["cnn2d"], {"csi": 1})
    one = batch({"csi": 1}, 4, (20, 30))
    flat = Batch({"csi": one.inputs["csi"][:, 0]}, one.present, one.target)
    assert flat.inputs["csi"].shape == (4, 20, 30)
    assert same_bits(model(one).prediction, model(flat).prediction)
    assert network(ZOO["cnn2d"], {"depth": 3})(batch({"depth": 3}, 2, (7, 5))).fused.shape[0] == 2


@pairwise(
    {
        "name": [name for name in NAMED if name not in ("cnn2d", "tpn", "tpn_mini")],
        "steps": [4, 5, 7, 16, 33],
    },
    {"name": layers},
)
def test_windows_may_have_any_length(name: str, steps: int) -> None:
    output = network(NAMED[name], TWO)(batch(TWO, 3, (steps,)))
    assert output.prediction.shape == (3, 3)
    assert bool(output.prediction.isfinite().all())


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_window_too_short_for_two_poolings_is_an_error_or_finite(steps: int) -> None:
    try:
        prediction = network(TINY, TWO)(batch(TWO, 3, (steps,))).prediction
    except (RuntimeError, ValueError):
        return
    assert bool(prediction.isfinite().all())


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("training", [False, True])
def test_what_a_masked_modality_holds_changes_no_bit_of_the_output(
    name: str, training: bool
) -> None:
    model = network(KINDS[name], TWO).train(training)
    source = masked(inputs(KINDS[name], TWO), a=[0] * 6)
    expected = run(model, source)
    for value in (0.0, 7.0, -1e30, float("inf"), float("nan")):
        found = run(network(KINDS[name], TWO).train(training), refilled(source, "a", value))
        assert same_bits(found.prediction, expected.prediction)
        assert same_bits(found.embedding, expected.embedding)
        assert same_bits(found.features["a"], torch.zeros_like(expected.features["a"]))


@pytest.mark.parametrize("name", KINDS)
def test_a_masked_modality_gets_exactly_zero_gradient(name: str) -> None:
    model = network(KINDS[name], TWO)
    found = gradients(model, masked(inputs(KINDS[name], TWO), a=[0] * 6))
    of_a = [p for p in found if p.startswith(("encoders.a.", "fusion.blocks.a."))]
    assert of_a
    assert all(bool((found[path] == 0).all()) for path in of_a)
    of_b = [p for p in found if p.startswith("encoders.b.")]
    assert of_b
    assert sum(float(found[path].abs().sum()) for path in of_b) > 0


@pytest.mark.parametrize("name", KINDS)
def test_masked_samples_change_nothing_in_evaluation(name: str) -> None:
    model = network(KINDS[name], TWO).eval()
    source = masked(inputs(KINDS[name], TWO), a=[1, 0, 0, 1, 1, 0], b=[0, 0, 1, 1, 1, 1])
    expected = model(source).prediction
    for value in (0.0, 7.0, float("nan")):
        assert same_bits(model(refilled(source, "a", value)).prediction, expected)
        assert same_bits(model(refilled(source, "b", value)).prediction, expected)


@pytest.mark.parametrize("name", list(KINDS))
def test_masked_samples_change_nothing_in_training(name: str) -> None:
    """Neither the output nor any gradient nor a buffer."""
    source = masked(inputs(KINDS[name], TWO), a=[1, 0, 0, 1, 1, 0], b=[0, 0, 1, 1, 1, 1])

    def trained(of: Batch) -> dict[str, Tensor]:
        model = network(KINDS[name], TWO).train()
        return gradients(model, of) | dict(State.buffers(model)) | {"y": run(model, of).prediction}

    expected = trained(source)
    for m in TWO:
        found = trained(refilled(source, m, 7.0))
        for path in expected:
            assert torch.equal(found[path], expected[path]), path


@pytest.mark.parametrize("name", [n for n in KINDS if n != "cnn2d_norm"])
def test_nan_in_a_masked_sample_reaches_no_gradient(name: str) -> None:
    model = network(KINDS[name], TWO)
    source = masked(inputs(KINDS[name], TWO), a=[1, 0, 0, 1, 1, 0])
    found = gradients(model, refilled(source, "a", float("nan")))
    assert all(bool(g.isfinite().all()) for g in found.values())


def test_masks_act_per_sample() -> None:
    """A sample without `a` fares as in a network that never had it."""
    both, only_b = network(TINY, TWO).eval(), network(TINY, {"b": 2}).eval()
    source = masked(batch(TWO), a=[1, 0, 1, 0, 1, 0])
    rest = Batch({"b": source.inputs["b"]}, {"b": source.present["b"]}, source.target)
    with_a, without = both(source).prediction, only_b(rest).prediction
    torch.testing.assert_close(with_a[1::2], without[1::2])
    assert not torch.allclose(with_a[::2], without[::2])


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("size", [1, 5])
def test_a_batch_without_any_modality_is_finite_throughout(name: str, size: int) -> None:
    model = network(KINDS[name], TWO)
    source = masked(inputs(KINDS[name], TWO, size), a=[0] * size, b=[0] * size)
    output = model(source)
    loss = F.cross_entropy(output.prediction, source.target)
    loss.backward()
    assert bool(output.prediction.isfinite().all())
    assert bool(loss.isfinite())
    for path, p in model.named_parameters():
        assert p.grad is None or bool(p.grad.isfinite().all()), path
    # All samples look alike, so all predictions are.
    assert all(same_bits(row, output.prediction[0]) for row in output.prediction)


@pytest.mark.parametrize("name", ["attention", "tpn_mini"])
def test_attention_weights_sum_to_one_over_present_modalities(name: str) -> None:
    channels = SETS[2]
    model = network(KINDS[name], channels)
    assert isinstance(model.fusion, Attention)
    source = masked(
        batch(channels), a=[1, 1, 0, 0, 1, 0], b=[1, 0, 1, 0, 1, 0], c=[1, 0, 1, 1, 0, 0]
    )
    features = model(source).features
    weights = model.fusion.weights(features, source.present)
    assert weights.shape == (6, 3, 4)
    mask = torch.stack([source.present[m] for m in features], 1)
    expected = mask.any(1).float()[:, None].expand(6, 4)
    torch.testing.assert_close(weights.sum(1), expected)
    assert bool((weights[~mask] == 0).all())
    assert bool((weights[mask] > 0).all())
    # Three modalities that are all there share the weight unevenly: scores do something.
    assert float(weights[0].detach().std(0).max()) > 1e-4


def test_attention_follows_its_formula() -> None:
    model = network(KINDS["attention"], TWO)
    source = batch(TWO, 3)
    output, state = model(source), State.of(model)
    h = torch.stack([output.features["a"], output.features["b"]], 1)  # (B, m, d)
    rows = []
    for i in range(3):
        contexts = []
        for c in range(4):
            scores = [
                state["fusion.shared.score2.weight"][c]
                @ torch.tanh(
                    state["fusion.shared.score1.weight"] @ h[i, m]
                    + state["fusion.shared.score1.bias"]
                )
                + state["fusion.shared.score2.bias"][c]
                for m in range(2)
            ]
            share = torch.softmax(torch.stack(scores), 0)
            contexts.append(share[0] * h[i, 0] + share[1] * h[i, 1])
        rows.append(torch.cat(contexts))
    torch.testing.assert_close(output.embedding, torch.stack(rows))


@pytest.mark.parametrize("name", ["cnn_attention", "tpn", "tpn_mini"])
def test_attention_gives_zeros_for_a_window_without_sensors(name: str) -> None:
    shapes = {"a": (3, 50), "b": (2, 50)}
    model = ZOO[name].build(shapes, 3)
    initialise(model, Streams(0))
    source = masked(batch(TWO, 3, (50,)), a=[0, 1, 0], b=[0, 1, 1])
    output = run(model, source)
    assert same_bits(output.fused[0], torch.zeros(model.embedding_size))
    assert bool((output.fused[1:].abs().sum(1) > 0).all())
    # A single sensor has all the weight in every context.
    torch.testing.assert_close(output.fused[2], output.features["b"][2].repeat(4))
    assert all(bool(g.isfinite().all()) for g in gradients(model, source).values())


def test_attention_is_open_to_modalities_it_was_not_built_for() -> None:
    """Its parameters belong to no modality: names, order and number are free."""
    fusion = network(KINDS["attention"], {"a": 3}).fusion
    assert fusion.open_to_any
    features = {m: random(5, 8, seed=i) for i, m in enumerate(("x", "a", "b.c", "d"))}
    present = {m: random(5, seed=9 + i) > 0 for i, m in enumerate(features)}
    fused, embedding = fusion(features, present)
    assert fused.shape == embedding.shape == (5, 32)
    assert bool(fused.isfinite().all())
    turned = dict(reversed(features.items()))
    torch.testing.assert_close(fusion(turned, present)[0], fused)
    gone = {m: flags & (m != "x") for m, flags in present.items()}
    fewer = {m: h for m, h in features.items() if m != "x"}
    torch.testing.assert_close(fusion(features, gone)[0], fusion(fewer, gone)[0])


def test_blocks_are_for_the_modalities_they_were_built_for() -> None:
    fusion = Blocks({"a": 4}, 3)
    assert not fusion.open_to_any
    with pytest.raises(KeyError):
        fusion({"b": random(2, 4)}, {"b": torch.ones(2, dtype=torch.bool)})


def test_attention_refuses_features_of_several_sizes() -> None:
    with pytest.raises(ValueError, match=r"one size.*blocks"):
        Attention({"a": 4, "b": 8})


@pytest.mark.parametrize("name", KINDS)
def test_a_shared_path_starts_with_the_same_bits_on_every_client(name: str) -> None:
    all_three = State.of(network(KINDS[name], SETS[2]))
    for channels in ({"a": 3}, {"b": 2}, {"b": 2, "a": 3}):
        own = State.of(network(KINDS[name], channels))
        assert set(own) <= set(all_three)
        assert all(same_bits(own[path], all_three[path]) for path in own)


def test_modules_that_a_method_adds_change_no_other_start() -> None:
    plain, equipped = TINY.build(shapes(TINY, TWO), 3), TINY.build(shapes(TINY, TWO), 3)
    FedRoD().equip(equipped, Classification(3))
    initialise(plain, Streams(4))
    initialise(equipped, Streams(4))
    before, after = State.of(plain), State.of(equipped)
    added = set(after) - set(before)
    assert added
    assert all(path.startswith("private.head.") for path in added)
    assert all(same_bits(before[path], after[path]) for path in before)


def test_starts_differ_between_paths_and_seeds_and_are_not_left_unset() -> None:
    def start(seed: int) -> State:
        model = ZOO["cnn"].build({"a": (3, 16), "b": (3, 16)}, 3)
        initialise(model, Streams(seed))
        return State.of(model)

    one, two = start(1), start(2)
    assert not same_bits(one["encoders.a.conv1.weight"], one["encoders.b.conv1.weight"])
    assert not same_bits(one["encoders.a.conv1.weight"], two["encoders.a.conv1.weight"])
    assert all(same_bits(one[path], start(1)[path]) for path in one)
    for path, tensor in one.items():
        assert bool((tensor.abs() <= 1).all()), path


def test_initialising_leaves_the_users_random_numbers_alone() -> None:
    model = ZOO["gru"].build(shapes(ZOO["gru"], TWO), 3)
    before = torch.get_rng_state()
    initialise(model, Streams(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_module_that_cannot_be_reset_is_named() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.free = nn.Parameter(torch.zeros(1))

    model = TINY.build(shapes(TINY, TWO), 3)
    model.private["odd"] = Odd()
    with pytest.raises(CommunisError, match=r"private\.odd \(Odd\) has parameters but no reset"):
        initialise(model, Streams(0))


def test_convolutions_start_in_the_range_of_torch() -> None:
    layer = ConvPool(3, 200, 5)
    with Streams(0).torch("x"):
        layer.reset_parameters()
    weight, bias = layer.weight.detach(), layer.bias.detach()
    bound = (3 * 5) ** -0.5  # 1 / sqrt(fan in)
    assert 0.98 * bound < float(weight.abs().max()) <= bound
    assert 0.9 * bound < float(bias.abs().max()) <= bound
    assert abs(float(weight.mean())) < 0.05 * bound


def test_the_benchmark_model_has_as_many_parameters_as_its_peers() -> None:
    model = Architecture(width=32).build(
        {"acc": (3, 128), "gyro": (3, 128), "mag": (3, 128), "hr": (1, 128)}, 12
    )
    # first layers  32 * 3 * 5 + 32 = 512 (three times) and 32 * 1 * 5 + 32 = 192:  1 728
    # second layers (64 * 32 * 5 + 64) * 4 = 10 304 * 4:                           41 216
    # fusion        256 * 128 + 128:                                               32 896
    # head          128 * 12 + 12:                                                  1 548
    assert sum(p.numel() for p in model.parameters()) == 77_388


def test_names_lead_to_architectures_and_back() -> None:
    assert architecture("gru") is not None
    assert architecture("cnn", width=8) == Architecture(width=8)
    assert all(kind.name == name for name, kind in {**ZOO, **NAMED}.items())
    assert "width=9" in Architecture(width=9).name
    with pytest.raises(CommunisError, match=r"no architecture 'cmn'; there are cnn_small"):
        architecture("cmn")


def test_an_mlp_has_relu_between_its_layers_only() -> None:
    layers = MLP((2, 3, 1))
    x = random(5, 2)
    first, last = layers.hidden[0], layers.out
    assert isinstance(first, nn.Linear)
    expected = last(first(x).clamp_min(0))
    torch.testing.assert_close(layers(x), expected)
    assert len(MLP((2, 1)).hidden) == 0


def test_encoders_and_blocks_are_sorted_whatever_order_they_came_in() -> None:
    forward, backward = network(TINY, TWO), network(TINY, dict(reversed(TWO.items())))
    assert list(forward.by_path[0]) == list(backward.by_path[0])
    assert isinstance(backward, Network)
    assert list(backward.encoders) == ["a", "b"]


def test_position_codes_are_distinct_waves() -> None:
    code = positions(50, 8)
    assert code.shape == (50, 8)
    torch.testing.assert_close(code[:, 0], torch.arange(50.0).sin())
    torch.testing.assert_close(code[:, 1], torch.arange(50.0).cos())
    assert float(torch.cdist(code, code).fill_diagonal_(9).min()) > 1e-2


def test_the_transformer_knows_the_order_of_time() -> None:
    model = network(KINDS["transformer"], {"a": 3}).eval()
    source = batch({"a": 3}, 2, (32,))
    # Whole patches change places, so that only the position code can tell.
    swapped = torch.cat([source.inputs["a"][..., 8:16], source.inputs["a"][..., :8]], -1)
    swapped = torch.cat([swapped, source.inputs["a"][..., 16:]], -1)
    other = Batch({"a": swapped}, source.present, source.target)
    assert not torch.allclose(model(source).prediction, model(other).prediction, atol=1e-5)


def plain_conv(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The same with torch's own layers; layouts as in ConvPool."""
    y = F.conv1d(x.transpose(1, 2), weight.permute(2, 1, 0), bias, padding=weight.shape[0] // 2)
    return F.relu(F.max_pool1d(y, 2)).transpose(1, 2)


def with_gradients(
    function: Any, x: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    leaves = [t.clone().requires_grad_() for t in (x, weight, bias)]
    out = function(*leaves)
    (out * random(*out.shape, seed=50, dtype=out.dtype)).sum().backward()
    grads = [t.grad for t in leaves]
    assert all(g is not None for g in grads)
    return out.detach(), *grads


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    layer = ConvPool(weight.shape[1], weight.shape[2], weight.shape[0])
    del layer.weight, layer.bias  # so that the leaves themselves get the gradients
    layer.weight, layer.bias = weight, bias
    out: Tensor = layer(x)
    return out


@pairwise(
    {
        "kernel": [1, 3, 5, 7],
        "channels": [1, 3, 15, 16, 20],
        "size, steps": [(1, 8), (1, 9), (4, 13), (3, 2), (2, 4)],
    }
)
def test_convpool_is_relu_of_pool_of_convolution(
    kernel: int, channels: int, size: int, steps: int
) -> None:
    """Values and all gradients; below and above the width where the implementation changes, also
    for windows shorter than the kernel."""
    x = random(size, steps, channels, seed=1, dtype=torch.float64)
    weight = random(kernel, channels, 4, seed=2, dtype=torch.float64)
    bias = random(4, seed=3, dtype=torch.float64)
    ours = with_gradients(conv_pool, x, weight, bias)
    theirs = with_gradients(plain_conv, x, weight, bias)
    assert ours[0].shape == (size, steps // 2, 4)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("channels", [3, 17])
@pytest.mark.parametrize("steps", [7, 8])
def test_convpool_agrees_on_ties_in_value_and_parameter_gradients(
    channels: int, steps: int
) -> None:
    """A constant window: neighbours are equal. Whole numbers, so that they are so exactly."""
    x, bias = torch.ones(2, steps, channels).double(), torch.tensor([0.5, -1.0, 2.0]).double()
    weight = (random(5, channels, 3) * 3).round().double()
    ours = with_gradients(conv_pool, x, weight, bias)
    theirs = with_gradients(plain_conv, x, weight, bias)
    for i in (0, 2, 3):
        torch.testing.assert_close(ours[i], theirs[i], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("channels", [3, 17])
def test_convpool_agrees_on_ties_in_the_input_gradient(channels: int) -> None:
    x, bias = torch.ones(2, 8, channels).double(), torch.tensor([0.5, -1.0, 2.0]).double()
    weight = (random(5, channels, 3) * 3).round().double()
    ours = with_gradients(conv_pool, x, weight, bias)
    theirs = with_gradients(plain_conv, x, weight, bias)
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("channels", [3, 17])
def test_on_a_tie_the_gradient_is_handed_on_once(channels: int) -> None:
    """To either neighbour, but neither to both nor to none."""
    x = torch.ones(1, 6, channels).double().requires_grad_()
    out = conv_pool(x, torch.ones(1, channels, 1).double(), torch.zeros(1).double())
    out.sum().backward()
    assert x.grad is not None
    pairs = x.grad.view(3, 2, channels).sum(1)
    torch.testing.assert_close(pairs, torch.ones_like(pairs))


@pytest.mark.parametrize("channels", [2, 16])
@pytest.mark.parametrize("steps", [6, 7])
def test_convpool_passes_gradcheck(channels: int, steps: int) -> None:
    leaves = [
        random(2, steps, channels, seed=1, dtype=torch.float64).requires_grad_(),
        random(3, channels, 2, seed=2, dtype=torch.float64).requires_grad_(),
        random(2, seed=3, dtype=torch.float64).requires_grad_(),
    ]
    assert torch.autograd.gradcheck(conv_pool, leaves)


def test_convpool_takes_gradients_in_any_layout() -> None:
    """The mean over time hands down an expanded gradient; a strided one comes from slicing."""
    x, weight, bias = random(2, 9, 3), random(5, 3, 4, seed=1), random(4, seed=2)
    for reduce in (lambda y: y.mean(1).sum(), lambda y: y[:, ::2, 1:].sum()):
        found = []
        for function in (conv_pool, plain_conv):
            leaf = x.clone().requires_grad_()
            reduce(function(leaf, weight, bias)).backward()
            found.append(leaf.grad)
        torch.testing.assert_close(found[0], found[1])


def test_convpool_works_where_only_some_gradients_are_asked_for() -> None:
    x, weight, bias = random(2, 8, 3), random(5, 3, 4, seed=1), random(4, seed=2)
    everything = with_gradients(conv_pool, x, weight, bias)
    for i in range(3):
        leaves = [t.clone().requires_grad_(i == j) for j, t in enumerate((x, weight, bias))]
        out = conv_pool(*leaves)
        (out * random(*out.shape, seed=50)).sum().backward()
        found = leaves[i].grad
        assert found is not None
        assert same_bits(found, everything[1 + i])
        assert all(leaves[j].grad is None for j in range(3) if j != i)


def test_convpool_leaves_its_input_alone() -> None:
    x, weight, bias = random(2, 8, 3), random(5, 3, 4, seed=1), random(4, seed=2)
    before = [t.clone() for t in (x, weight, bias)]
    with_gradients(conv_pool, x, weight, bias)
    conv_pool(x, weight, bias)
    assert all(same_bits(a, b) for a, b in zip((x, weight, bias), before, strict=True))


def test_neighbouring_samples_do_not_touch() -> None:
    """The batch is one long sequence inside; no kernel may reach across a border."""
    x, weight, bias = random(3, 8, 3), random(7, 3, 4, seed=1), random(4, seed=2)
    alone = torch.cat([conv_pool(row[None], weight, bias) for row in x])
    torch.testing.assert_close(conv_pool(x, weight, bias), alone)
    poisoned = x.clone()
    poisoned[1] = float("nan")
    assert same_bits(conv_pool(poisoned, weight, bias)[[0, 2]], conv_pool(x, weight, bias)[[0, 2]])


def test_convpool_cannot_be_differentiated_twice_and_says_so() -> None:
    x = random(1, 6, 2).requires_grad_()
    out = conv_pool(x, random(3, 2, 2, seed=1), random(2, seed=2))
    (first,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="twice"):
        first.square().sum().backward()


def test_an_even_kernel_is_refused() -> None:
    with pytest.raises(ValueError, match="odd to keep the length, got 4"):
        ConvPool(2, 2, 4)


def test_points_have_no_order_and_may_be_any_number() -> None:
    model = TINY.build({"cloud": (4, 30)}, 3, {"cloud": "points"})
    initialise(model, Streams(0))
    x = random(5, 4, 30)
    present = {"cloud": torch.ones(5, dtype=torch.bool)}
    target = torch.zeros(5, dtype=torch.int64)
    one = model(Batch({"cloud": x}, present, target)).prediction
    shuffled = x[:, :, torch.randperm(30, generator=torch.Generator().manual_seed(1))]
    other = model(Batch({"cloud": shuffled}, present, target)).prediction
    assert torch.allclose(one, other, atol=1e-6)
    doubled = model(Batch({"cloud": torch.cat([x, x], 2)}, present, target)).prediction
    assert torch.allclose(one, doubled, atol=1e-6)


def test_every_kind_of_window_finds_an_encoder_in_one_network() -> None:
    shapes = {"acc": (3, 64), "heart": (1, 2), "depth": (1, 12, 16), "cloud": (5, 32)}
    model = TINY.build(shapes, 3, {"cloud": "points", "depth": "image"})
    kinds = {m: type(e).__name__ for m, e in model.encoders.items()}
    assert kinds == {"acc": "CNN1d", "heart": "Dense", "depth": "CNN2d", "cloud": "Points"}
    initialise(model, Streams(0))
    inputs = {m: random(4, *shape) for m, shape in shapes.items()}
    present = {m: torch.ones(4, dtype=torch.bool) for m in shapes}
    out = model(Batch(inputs, present, torch.zeros(4, dtype=torch.int64)))
    assert out.prediction.shape == (4, 3)
    out.prediction.sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_tpn_has_the_parameters_of_the_paper() -> None:
    model = ZOO["tpn"].build({"acc": (3, 200), "gyro": (3, 200)}, 12)
    # 32 * 3 * 24 + 32 = 2 336, 64 * 32 * 16 + 64 = 32 832, 96 * 64 * 8 + 96 = 49 248
    assert [count(encoder) for encoder in model.encoders.values()] == [84_416, 84_416]
    assert count(model.fusion) == 96 * 512 + 512 + 512 * 4 + 4 == 51_716
    assert count(model.head) == 384 * 256 + 256 + 256 * 128 + 128 + 128 * 12 + 12 == 133_004
    assert not list(model.buffers())


def test_tpn_mini_has_narrower_layers() -> None:
    model = ZOO["tpn_mini"].build({"acc": (3, 66)}, 12)
    # 16 * 3 * 8 + 16 = 400, 32 * 16 * 5 + 32 = 2 592, 64 * 32 * 3 + 64 = 6 208
    assert count(model.encoders) == 9_200
    assert count(model.fusion) == 64 * 512 + 512 + 512 * 4 + 4 == 35_332
    assert count(model.head) == 256 * 256 + 256 + 256 * 128 + 128 + 128 * 12 + 12 == 100_236
    assert not list(model.buffers())


@pytest.mark.parametrize(("name", "shortest"), [("tpn", 46), ("tpn_mini", 14), ("cnn", 4)])
def test_series_too_short_to_be_convolved_have_a_dense_encoder(name: str, shortest: int) -> None:
    kind = ZOO[name]
    model = kind.build({"a": (3, shortest - 1), "b": (3, shortest)}, 3)
    kinds = [type(encoder).__name__ for encoder in model.encoders.values()]
    assert kinds == ["Dense", {"tpn": "TPN", "tpn_mini": "TPNMini", "cnn": "CNN1d"}[name]]
    initialise(model, Streams(0))
    x = {m: random(2, 3, steps) for m, steps in (("a", shortest - 1), ("b", shortest))}
    present = {m: torch.ones(2, dtype=torch.bool) for m in x}
    features = model(Batch(x, present, torch.zeros(2, dtype=torch.int64))).features
    assert all(h.shape == (2, 2 * kind.width) for h in features.values())
    with pytest.raises((RuntimeError, ValueError)):
        model.encoders["b"](x["a"])


def plain_tpn(encoder: TPN, x: Tensor) -> Tensor:
    """The same with torch's own layers in the order of the paper, without dropout."""
    for conv in (encoder.conv1, encoder.conv2, encoder.conv3):
        x = F.relu(F.conv1d(x, conv.weight.squeeze(2), conv.bias))
    return x.amax(-1)


def tpn(made: type[TPN], channels: int, width: int, dropout: float = 0.1) -> TPN:
    encoder = made(channels, width, dropout)
    initialise(encoder, Streams(0))
    return encoder


@pairwise(
    {
        "made, width": [(TPN, 48), (TPNMini, 32), (TPN, 5), (TPNMini, 1)],
        "channels": [1, 3],
        "size, beyond": [(1, 0), (5, 0), (1, 9), (5, 30)],
    }
)
def test_tpn_is_three_plain_convolutions(
    made: type[TPN], width: int, channels: int, size: int, beyond: int
) -> None:
    """Values and all gradients; also for the shortest window and a single one."""
    encoder = tpn(made, channels, width, dropout=0.0)
    x = random(size, channels, made.shortest + beyond)
    results = []
    for function in (encoder, lambda t: plain_tpn(encoder, t)):
        encoder.zero_grad()
        leaf = x.clone().requires_grad_()
        out = function(leaf)
        (out * random(*out.shape, seed=50)).sum().backward()
        grads = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
        assert leaf.grad is not None
        results.append([out.detach(), leaf.grad, *grads])
    ours, theirs = results
    assert len(ours) == len(theirs) == 8
    assert ours[0].shape == (size, 2 * width)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("made", [TPN, TPNMini])
def test_tpn_takes_windows_in_any_layout(made: type[TPN]) -> None:
    encoder = tpn(made, 3, 8).eval()
    x = random(4, 3, 60)
    expected = encoder(x)
    turned = x.transpose(1, 2).contiguous().transpose(1, 2)
    sliced = torch.stack([x, x + 1], -1)[..., 0]
    lent = torch.cat([x, x], 1)[:, 3:]
    for other in (turned, sliced, lent):
        assert not other.is_contiguous()
        assert torch.equal(other, x)
        torch.testing.assert_close(encoder(other), expected, rtol=1e-5, atol=1e-6)


def test_tpn_drops_values_in_training_only() -> None:
    encoder, x = tpn(TPNMini, 3, 8), random(4, 3, 30)
    plain = plain_tpn(encoder, x)

    def drawn(seed: int) -> Tensor:
        with Streams(seed).torch("dropout"):
            out: Tensor = encoder(x)
        return out

    encoder.train()
    assert same_bits(drawn(1), drawn(1))
    assert not torch.equal(drawn(1), drawn(2))
    encoder.eval()
    assert same_bits(drawn(1), drawn(2))
    torch.testing.assert_close(drawn(1), plain, rtol=1e-5, atol=1e-6)


def test_the_last_relu_of_tpn_may_come_after_dropout_and_pooling() -> None:
    """With the same draws, as if every layer were convolution, ReLU, dropout."""
    encoder, x = tpn(TPNMini, 3, 8, dropout=0.4).train(), random(4, 3, 30)
    with Streams(1).torch("dropout"):
        found = encoder(x)
    with Streams(1).torch("dropout"):
        y = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        for conv in (encoder.conv1, encoder.conv2, encoder.conv3):
            y = F.dropout(F.relu(conv(y)), 0.4, True)
    assert torch.equal(found, y.amax((2, 3)))


def test_tpn_starts_so_that_a_relu_keeps_the_power_of_its_input() -> None:
    """Standard deviation sqrt(2 / fan in), biases zero."""
    encoder = tpn(TPN, 3, 48)
    for conv in (encoder.conv1, encoder.conv2, encoder.conv3):
        weight, bias = conv.weight.detach(), conv.bias
        assert bias is not None
        assert not bias.any()
        expected = (2 / (weight.shape[1] * weight.shape[3])) ** 0.5
        assert float(weight.std()) == pytest.approx(expected, rel=0.05)


def test_an_absent_sensor_whose_encoder_is_frozen_has_no_features_and_no_gradient() -> None:
    model = network(TINY, {"a": 2, "b": 1})
    for p in model.encoders["a"].parameters():
        p.requires_grad_(False)
    given = batch({"a": 2, "b": 1})
    absent = replace(given, present={**given.present, "a": torch.zeros(6, dtype=torch.bool)})
    output = model(absent)
    assert not output.features["a"].any()
    output.prediction.sum().backward()
    assert model.by_path[0]["encoders.b.conv1.weight"].grad is not None


def test_zeros_in_place_of_an_absent_sensor() -> None:
    """With `zero_fill` an encoder is fed zeros; otherwise its features are zero."""
    model = network(TINY, {"a": 2})
    given = batch({"a": 2})
    absent = replace(given, present={"a": torch.zeros(6, dtype=torch.bool)})
    assert not model(absent).features["a"].any()
    model.zero_fill = True
    zeros = replace(given, inputs={"a": torch.zeros_like(given.inputs["a"])})
    torch.testing.assert_close(model(absent).features["a"], model.encoders["a"](zeros.inputs["a"]))
    torch.testing.assert_close(model(given).features["a"], model.encoders["a"](given.inputs["a"]))
