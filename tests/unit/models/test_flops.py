"""FLOPs against numbers counted by hand, layer by layer."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from communis.core.contract import Batch, Output
from communis.core.samples import TensorSamples
from communis.core.streams import Streams
from communis.models.flops import WINDOWS, Meter, StepFlops, forward_flops
from communis.models.network import MLP, Network, initialise
from communis.models.zoo import ZOO, Architecture
from tests.unit.small import random

OUTPUTS, WIDTH, EMBEDDING = 5, 16, 6
SHAPES = {"a": (2, 24), "b": (3, 24)}


def loss(output: Output, batch: Batch) -> Tensor:
    return F.cross_entropy(output.prediction, batch.target)


def network(kind: Architecture, shapes: Mapping[str, tuple[int, ...]] = SHAPES) -> Network:
    model = kind.build(shapes, OUTPUTS)
    initialise(model, Streams(0))
    return model


def samples(
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    windows: int = 10,
    missing: Mapping[str, int] | None = None,
) -> TensorSamples:
    """The first windows lack a sensor, as many as `missing` says."""
    here = {m: torch.arange(windows) >= (missing or {}).get(m, 0) for m in shapes}
    inputs = {m: random(windows, *shape[1:], shape[0]) for m, shape in shapes.items()}
    return TensorSamples(inputs, here, torch.arange(windows) % OUTPUTS)


def convpool(steps: int, channels: int, width: int) -> float:
    """A product per row of the long padded sequence, for all of its 5 taps at once."""
    return 2 * (steps + 4 - 4 / WINDOWS) * 5 * channels * width


def conv(places: int, kernel: int, channels: int, width: int) -> float:
    return 2 * places * kernel * channels * width


def encoder_layers(encoder: str, shape: Sequence[int]) -> list[float]:
    """FLOPs of the two layers of an encoder, forward."""
    channels, steps = shape[0], shape[-1]
    w = WIDTH
    if encoder == "cnn1d":
        return [convpool(steps, channels, w), convpool(steps // 2, w, 2 * w)]
    if encoder == "norm":
        return [conv(steps, 5, channels, w), conv(steps // 2, 5, w, 2 * w)]
    if encoder == "lite":  # strides of 2
        return [conv(steps // 2, 5, channels, w), conv(steps // 4, 5, w, 2 * w)]
    rows, columns = shape[-2], steps  # cnn2d: one plane of channels x steps
    halved, again = -(-rows // 2) * -(-columns // 2), -(-rows // 4) * -(-columns // 4)
    return [conv(halved, 9, 1, w), conv(again, 9, w, 2 * w)]


KINDS = {
    "cnn1d": Architecture("cnn1d", WIDTH, embedding=EMBEDDING),
    "norm": Architecture("cnn1d", WIDTH, embedding=EMBEDDING, norm=True),
    "lite": Architecture("lite", WIDTH, embedding=EMBEDDING),
    "cnn2d": Architecture("cnn2d", WIDTH, embedding=EMBEDDING),
}
ALL = ("conv1.a", "conv1.b", "conv2.a", "conv2.b", "block.a", "block.b", "shared", "head")
TRAINED = [
    ALL,
    ("head",),
    ("shared",),
    ("block.a",),
    ("conv2.a",),
    ("conv1.b",),
    ("conv1.a", "block.b"),
    ("conv1.a", "conv2.a", "block.a"),
    (),
]


def layer_of(path: str) -> str:
    parts = path.split(".")
    if parts[0] == "encoders":
        return f"{parts[2].replace('norm', 'conv')}.{parts[1]}"
    return (
        "head" if parts[0] == "head" else "shared" if parts[1] == "shared" else f"block.{parts[2]}"
    )


@pytest.mark.parametrize("encoder", KINDS)
@pytest.mark.parametrize("trained", TRAINED, ids=lambda names: "+".join(names)[:24] or "nothing")
def test_backward_is_what_trains_and_what_lies_above_the_lowest(
    encoder: str, trained: tuple[str, ...]
) -> None:
    model = network(KINDS[encoder])
    for path, parameter in model.named_parameters():
        parameter.requires_grad_(layer_of(path) in trained)
    flops = {"head": 2.0 * EMBEDDING * OUTPUTS, "shared": 0.0}
    for m, shape in SHAPES.items():
        flops[f"conv1.{m}"], flops[f"conv2.{m}"] = encoder_layers(encoder, shape)
        flops[f"block.{m}"] = 2 * 2 * WIDTH * EMBEDDING
    backward = sum(flops[name] for name in trained)
    backward += flops["head"] * any(name != "head" for name in trained)
    for m in SHAPES:
        deep = f"conv1.{m}" in trained
        backward += flops[f"block.{m}"] * (deep or f"conv2.{m}" in trained)
        backward += flops[f"conv2.{m}"] * deep
    cost = Meter().per_window(model, loss, samples(), "")
    assert cost == StepFlops(pytest.approx(sum(flops.values())), pytest.approx(backward))  # type: ignore[arg-type]


def test_recurrent_layers_step_by_step() -> None:
    """Every second step; three gates; no gradient for inputs nor for the first state."""
    model = network(Architecture("gru", WIDTH, embedding=EMBEDDING), {"a": (3, 24)})
    steps, hidden = 12, 2 * WIDTH
    inputs, states = 2 * 3 * 3 * hidden, 2 * 3 * hidden * hidden
    rest = 2 * hidden * EMBEDDING + 2 * EMBEDDING * OUTPUTS
    cost = Meter().per_window(model, loss, samples({"a": (3, 24)}), "")
    forward = steps * (inputs + states) + rest
    assert cost == StepFlops(forward, forward + (steps - 1) * states + rest)


def test_attention_blocks_token_by_token() -> None:
    """Patches of 8 steps. The fused kernel computes its scores once more on the way back, so its
    five products there stand against two forward."""
    model = network(Architecture("transformer", WIDTH, embedding=EMBEDDING), {"a": (3, 48)})
    tokens, d = 6, 2 * WIDTH
    embed, block = 2 * tokens * 3 * 8 * d, 2 * tokens * d * (3 * d + d + 2 * d + 2 * d)
    scores = 2 * tokens * tokens * d  # of all heads together
    rest = 2 * d * EMBEDDING + 2 * EMBEDDING * OUTPUTS
    cost = Meter().per_window(model, loss, samples({"a": (3, 48)}), "")
    assert cost.forward == embed + 2 * (block + 2 * scores) + rest
    assert cost.backward == embed + 2 * (2 * block + 5 * scores) + 2 * rest


def test_fusion_by_attention() -> None:
    kind = Architecture("lite", WIDTH, "attention", units=7)
    f, contexts = 2 * WIDTH, 4
    encoders = [encoder_layers("lite", shape) for shape in SHAPES.values()]
    scores, mix = 2 * 2 * (f * 7 + 7 * contexts), 2 * contexts * 2 * f
    head = 2 * contexts * f * OUTPUTS
    cost = Meter().per_window(network(kind), loss, samples(), "")
    forward = sum(map(sum, encoders)) + scores + mix + head
    assert cost.forward == forward
    first = sum(one for one, _ in encoders)  # no gradient for inputs
    assert cost.backward == 2 * forward - first


@pytest.mark.parametrize("name", [n for n, kind in ZOO.items() if not kind.pretrained])
def test_a_forward_pass_costs_the_same_in_training_and_evaluation(name: str) -> None:
    shapes = {"a": (2, 48), "b": (1, 48)}
    model = network(replace(ZOO[name], width=8), shapes)
    cost = Meter().per_window(model, loss, samples(shapes), "")
    assert forward_flops(model, shapes) == cost.forward > 0
    assert cost.forward < cost.backward < 2.6 * cost.forward


@pytest.mark.parametrize("encoder", ["lite", "gru", "tpn_mini", "cnn2d"])
def test_counts_are_those_of_torch_s_own_counter(encoder: Any) -> None:
    """Where it knows all operators."""
    model, data = network(Architecture(encoder, 8)), samples(windows=WINDOWS)
    batch = data.batch(torch.arange(WINDOWS))
    cost = Meter().per_window(model, loss, data, "")
    with FlopCounterMode(display=False) as counter:
        loss(model(batch), batch).backward()  # type: ignore[no-untyped-call]
    assert counter.get_total_flops() == WINDOWS * (cost.forward + cost.backward)


def test_relief_s_own_model_on_its_own_windows() -> None:
    """0.84 MMAC per modality, 4 modalities, as the paper's arithmetic has it."""
    shapes = {"acc": (9, 256), "gyro": (9, 256), "mag": (9, 256), "hr": (1, 256)}
    first, second = 2 * 128 * 5 * 28 * 32, 4 * 2 * 64 * 5 * 32 * 64
    model = ZOO["lite"].build(shapes, 12)
    assert forward_flops(model, shapes) == first + second + 2 * 256 * 128 + 2 * 128 * 12


def test_windows_that_lack_sensors_cost_less() -> None:
    """Their encoder is not at work; the fusion still multiplies its zeros."""
    model, meter = network(KINDS["lite"]), Meter()
    whole = meter.spent(model, loss, samples(), "", 3.0)
    some = meter.spent(model, loss, samples(missing={"a": 4, "b": 10}), "", 3.0)
    (a1, a2), (b1, b2) = (encoder_layers("lite", shape) for shape in SHAPES.values())
    assert whole[0] - some[0] == pytest.approx(3 * (4 * (a1 + a2) + 10 * (b1 + b2)))
    assert whole[1] - some[1] == pytest.approx(3 * (4 * (a1 + 2 * a2) + 10 * (b1 + 2 * b2)))
    cost = meter.per_window(model, loss, samples(), "")
    assert whole == (30 * cost.forward, 30 * cost.backward)


def test_branches_of_sensors_that_nobody_owns_are_paid_for() -> None:
    model, meter = network(KINDS["lite"]), Meter()
    data = samples(missing={"a": 4, "b": 10})
    only_a = meter.spent(model, loss, samples(missing={"a": 4}), "", 1.0)
    assert meter.spent(model, loss, data, "", 1.0, owned=("a",)) == only_a
    assert meter.spent(model, loss, data, "", 1.0, owned=()) == meter.spent(
        model, loss, samples(), "", 1.0
    )


def test_absent_sensors_that_are_fed_as_zeros_save_nothing() -> None:
    model, meter = network(KINDS["lite"]), Meter()
    model.zero_fill = True
    whole = meter.spent(model, loss, samples(), "", 1.0)
    assert meter.spent(model, loss, samples(missing={"a": 4, "b": 10}), "", 1.0) == whole


def test_nothing_trained_costs_nothing() -> None:
    meter, model = Meter(), network(KINDS["lite"])
    assert meter.spent(model, loss, samples(), "", 0.0) == (0.0, 0.0)
    assert meter.spent(model, loss, samples(windows=0), "", 2.0) == (0.0, 0.0)


def test_a_model_has_a_cost_before_it_has_windows() -> None:
    model = network(KINDS["lite"])
    costs = [Meter().per_window(model, loss, samples(windows=n), "") for n in (0, 1, 3, 9)]
    assert costs == costs[:1] * 4


def test_what_a_loss_computes_counts_too() -> None:
    model, proxy = network(KINDS["lite"]), nn.Linear(EMBEDDING, 11)

    def richer(output: Output, batch: Batch) -> Tensor:
        value: Tensor = proxy(output.embedding).sum()
        return loss(output, batch) + value

    plain, rich = (Meter().per_window(model, f, samples(), "") for f in (loss, richer))
    assert rich.forward - plain.forward == 2 * EMBEDDING * 11
    assert rich.backward - plain.backward == 2 * EMBEDDING * 11  # proxy is not of the model
    assert proxy.weight.grad is None


def test_counting_leaves_no_trace() -> None:
    model, data = network(KINDS["norm"]), samples(missing={"a": 2})
    model.encoders["a"].eval()
    model.head.out.weight.grad = torch.ones_like(model.head.out.weight)
    model.encoders["b"].requires_grad_(False)
    before = {path: t.clone() for path, t in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    Meter().spent(model, loss, data, "", 1.0)
    forward_flops(model, SHAPES)
    assert modes == [module.training for module in model.modules()]
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[path], after[path]) for path in before)
    assert [p for p, x in model.named_parameters() if x.grad is not None] == ["head.out.weight"]
    assert torch.equal(model.head.out.weight.grad, torch.ones_like(model.head.out.weight))
    assert data.missing == {"a": 2}
    assert torch.backends.cudnn.enabled


def test_an_interrupted_count_leaves_no_trace_either() -> None:
    model = network(KINDS["norm"]).eval()
    before = model.encoders["a"].norm1.running_mean.clone()

    def broken(output: Output, batch: Batch) -> Tensor:
        raise ValueError("no loss")

    with pytest.raises(ValueError, match="no loss"):
        Meter().per_window(model, broken, samples(), "")
    assert not model.training
    assert torch.equal(before, model.encoders["a"].norm1.running_mean)


@pytest.mark.slow
def test_a_cost_is_counted_once_per_model_and_key() -> None:
    meter, calls = Meter(), []

    def counting(output: Output, batch: Batch) -> Tensor:
        calls.append(bool(batch.present["a"].all()))
        return loss(output, batch)

    model = network(KINDS["lite"])
    for _ in range(3):
        meter.spent(model, counting, samples(), "all", 1.0)
    assert calls == [True]  # absence is not measured where nothing is absent
    meter.spent(model, counting, samples(missing={"a": 1}), "all", 1.0)
    assert calls == [True, False]
    model.requires_grad_(False)
    assert meter.per_window(model, counting, samples(), "all").backward > 0
    assert meter.per_window(model, counting, samples(), "nothing").backward == 0
    other = network(KINDS["lite"])
    meter.per_window(other, counting, samples(), "all")
    assert len(calls) == 4
    del model, other
    gc.collect()
    assert not len(meter._known)


def test_modules_that_a_method_adds_count_where_the_loss_uses_them() -> None:
    model = network(KINDS["lite"])
    model.private["head"] = MLP((EMBEDDING, OUTPUTS))

    def both(output: Output, batch: Batch) -> Tensor:
        own: Tensor = model.private["head"](output.embedding)
        return loss(output, batch) + F.cross_entropy(own, batch.target)

    plain, two = (Meter().per_window(model, f, samples(), "") for f in (loss, both))
    head = 2 * EMBEDDING * OUTPUTS
    assert (two.forward - plain.forward, two.backward - plain.backward) == (head, 2 * head)


# Channels after every block, and its rows x columns, for windows of 1000 x 242.
TABLE_II = {
    "tiny_convnet4": ([(256, 500 * 121)], 340.746),
    "middle_convnet4": ([(16, 500 * 121), (32, 250 * 61)], 162.851),
    "large_convnet4": (
        [(16, 500 * 121), (32, 250 * 61), (64, 125 * 31), (128, 63 * 16), (256, 32 * 8)],
        606.349,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE_II)
def test_fedapa_s_table_ii_counts_elementwise_work(name: str) -> None:
    """Per value: BatchNorm 2, ReLU 1, pooling 1; biases nothing. To the FLOP."""
    blocks, printed = TABLE_II[name]
    shapes = {"csi": (1, 1000, 242)}
    before = [1, *(channels for channels, _ in blocks)]
    products = sum(2 * 9 * a * b * n for a, (b, n) in zip(before, blocks, strict=False))
    products += 2 * 256 * 20 + (0 if name == "tiny_convnet4" else 2 * before[-1] * 256)
    values = [channels * places for channels, places in blocks]
    elementwise = 3 * sum(values) + values[-1]
    model = ZOO[name].build(shapes, 20)
    assert forward_flops(model, shapes, elementwise=True) == products + elementwise
    assert round((products + elementwise) / 1e6, 3) == printed
    assert forward_flops(model, shapes) == products


def test_elementwise_work_of_other_layers() -> None:
    """ConvPool keeps the larger of two neighbours and then has half as many values for the ReLU and
    the mean; an attention block has two normalisations and one activation of twice the width; a
    recurrent layer has three gates."""
    shapes, w = {"a": (3, 48)}, WIDTH

    def more(kind: Architecture) -> float:
        model = network(kind, shapes)
        return forward_flops(model, shapes, elementwise=True) - forward_flops(model, shapes)

    fused = EMBEDDING  # the ReLU of the fusion
    first, second = 24 * w, 12 * 2 * w
    assert more(KINDS["cnn1d"]) == 2 * first + first + 2 * second + second + second + fused
    # Normalised and pooled at full length, then ReLU.
    first, second = 48 * w, 24 * 2 * w
    norm = 2 * first + first + first / 2 + 2 * second + second + second / 2 + second / 2
    assert more(KINDS["norm"]) == norm + fused
    tokens, d = 6, 2 * w
    block = 2 * 2 * tokens * d + tokens * 2 * d
    kind = Architecture("transformer", w, embedding=EMBEDDING)
    assert more(kind) == 2 * block + 2 * tokens * d + tokens * d + fused
    gates = 24 * 3 * 2 * w  # every second step
    assert more(Architecture("gru", w, embedding=EMBEDDING)) == gates + fused


@pytest.mark.parametrize("name", ["cnn", "cnn_norm", "cnn_gru_lite", "large_convnet4"])
def test_counting_elementwise_work_leaves_no_trace(name: str) -> None:
    shapes = {"a": (2, 48)}
    model = network(ZOO[name], shapes)
    before = {path: t.clone() for path, t in model.state_dict().items()}
    counts = [forward_flops(model, shapes, elementwise) for elementwise in (False, True, False)]
    assert counts[0] == counts[2] < counts[1]
    assert model.training
    assert all(torch.equal(before[path], t) for path, t in model.state_dict().items())


def test_what_a_new_model_holds_is_not_computed_with() -> None:
    """It is memory as it was found, on which a decomposition may fail; it stays as it was."""
    shapes = {"a": (3, 64)}
    made = Architecture("tokens", fusion="sglt", embedding=32).build(shapes, OUTPUTS)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.fill_(torch.nan)
    seen: list[bool] = []

    def look(*_: object) -> None:
        seen.extend(bool(parameter.isnan().any()) for parameter in made.parameters())

    made.register_forward_pre_hook(look)
    found = forward_flops(made, shapes)
    assert seen
    assert not any(seen)
    assert all(bool(parameter.isnan().all()) for parameter in made.parameters())
    initialise(made, Streams(0))
    assert forward_flops(made, shapes) == found
