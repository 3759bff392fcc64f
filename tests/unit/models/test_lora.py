"""Adapters: what is frozen, what starts where, and that they are the function they claim to be."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis import Batch, State, Streams
from communis.models.lora import LoRABlocks, LoRALinear
from communis.models.network import Network, initialise
from communis.models.zoo import Architecture, architecture
from tests.unit.small import batch, random, same_bits

SIZES = {"a": 5, "b": 3, "c": 4}
TWO = {"a": 3, "b": 2}
TINY = architecture("tiny_lora", weights="random")


def layer(alpha: float | None = None) -> LoRALinear:
    """With a B that is not zero any more."""
    made = LoRALinear(nn.Linear(5, 7), rank=2, alpha=alpha)
    initialise(made, Streams(0))
    nn.init.normal_(made.lora_B, generator=torch.Generator().manual_seed(1))
    return made


def fusion(sizes: dict[str, int], width: int = 6, moved: bool = True) -> LoRABlocks:
    made = LoRABlocks(sizes, width, rank=2)
    initialise(made, Streams(0))
    if moved:
        nn.init.normal_(made.shared.lora_B, generator=torch.Generator().manual_seed(1))
    return made


def fused(of: LoRABlocks, features: dict[str, Tensor]) -> Tensor:
    here = {m: torch.ones(len(h), dtype=torch.bool) for m, h in features.items()}
    found: Tensor = of(features, here)[0]
    return found


def features(size: int = 4) -> dict[str, Tensor]:
    return {m: random(size, d, seed=i) for i, (m, d) in enumerate(SIZES.items())}


@pytest.mark.parametrize(("alpha", "scale"), [(None, 1.0), (6.0, 3.0)])
def test_an_adapter_adds_a_low_rank_product(alpha: float | None, scale: float) -> None:
    made, x = layer(alpha), random(3, 4, 5)
    low = F.linear(F.linear(x, made.lora_A), made.lora_B)
    torch.testing.assert_close(made(x), F.linear(x, made.weight, made.bias) + scale * low)
    torch.testing.assert_close(made(x), F.linear(x, made.merged(), made.bias))


def test_gradients_of_an_adapter_are_those_of_the_two_products() -> None:
    made, x = layer(), random(6, 5)
    found = torch.autograd.grad(made(x).square().sum(), [made.lora_A, made.lora_B])
    y = F.linear(x, made.weight, made.bias) + F.linear(F.linear(x, made.lora_A), made.lora_B)
    expected = torch.autograd.grad(y.square().sum(), [made.lora_A, made.lora_B])
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_layer_without_bias_can_be_adapted() -> None:
    base = nn.Linear(5, 7, bias=False)
    made = LoRALinear(base)
    initialise(made, Streams(0))
    assert same_bits(made(random(2, 5)), base(random(2, 5)))


def test_an_adapted_layer_starts_as_the_frozen_one_and_only_b_learns_at_first() -> None:
    base = nn.Linear(16, 7)
    before = base.weight.detach().clone()
    made, x = LoRALinear(base), random(4, 16)
    initialise(made, Streams(0))
    assert same_bits(made(x), base(x))
    assert float(made.lora_A.detach().abs().max()) <= math.sqrt(1 / 16)
    assert float(made.lora_A.detach().abs().max()) > 0.2
    made(x).square().sum().backward()
    assert made.lora_A.grad is not None
    assert made.lora_B.grad is not None
    assert not made.lora_A.grad.any()
    assert bool(made.lora_B.grad.any())
    assert made.weight.grad is None
    assert same_bits(made.weight, before)


def test_the_sum_over_modalities_is_one_product_on_all_features() -> None:
    """W_0 h + B A h with h the concatenated features, W_0 and A the concatenated blocks."""
    made, h = fusion(SIZES), features()
    blocks = [made.blocks[m] for m in SIZES]
    joined = torch.cat(list(h.values()), 1)
    A = torch.cat([block.lora_A for block in blocks], 1)
    W = torch.cat([block.weight for block in blocks], 1)
    parts = [F.linear(h[m], block.lora_A) for m, block in zip(SIZES, blocks, strict=True)]
    torch.testing.assert_close(sum(parts), joined @ A.T)
    expected = joined @ (W + made.shared.lora_B @ A).T
    torch.testing.assert_close(fused(made, h), expected)
    here = {m: torch.ones(4, dtype=torch.bool) for m in h}
    torch.testing.assert_close(made(h, here)[1], expected.clamp_min(0))


def test_the_fusion_starts_as_the_frozen_one_and_only_b_learns_at_first() -> None:
    made, h = fusion(SIZES, moved=False), features()
    found = fused(made, h)
    torch.testing.assert_close(found, sum(F.linear(h[m], made.blocks[m].weight) for m in SIZES))
    found.square().sum().backward()
    assert not any(made.blocks[m].lora_A.grad.any() for m in SIZES)
    assert bool(made.shared.lora_B.grad.any())


def test_the_frozen_part_depends_on_the_name_of_the_modality_alone() -> None:
    """Not on the seed, on other sensors or on what was drawn before."""
    torch.rand(3)
    before = torch.get_rng_state()
    one, other = fusion(SIZES), LoRABlocks({"b": 3}, 6)
    initialise(other, Streams(9))
    assert torch.equal(torch.get_rng_state(), before)
    assert same_bits(one.blocks["b"].weight, other.blocks["b"].weight)
    apart = LoRABlocks({"a": 3, "b": 3}, 6)
    assert not torch.equal(apart.blocks["a"].weight, apart.blocks["b"].weight)
    assert float(one.blocks["b"].weight.abs().max()) <= math.sqrt(1 / 3)


def test_what_is_frozen_is_neither_listed_nor_changed_by_a_seed() -> None:
    shapes = {"acc": (3, 16), "gyro": (2, 16)}
    models = [TINY.build(shapes, 3) for _ in range(2)]
    for seed, model in enumerate(models):
        initialise(model, Streams(seed))
    one, other = (dict(model.named_parameters()) for model in models)
    listed = models[0].by_path
    assert not listed[1]
    assert listed[0].keys() == {path for path in one if "lora" in path or "head" in path}
    assert {"fusion.blocks.acc.lora_A", "fusion.shared.lora_B"} <= listed[0].keys()
    assert "encoders.gyro.blocks.1.down.lora_B" in listed[0]
    for path, p in one.items():
        zero = path.endswith("lora_B")
        assert same_bits(p, other[path]) == (path not in listed[0] or zero), path


def absent(model: Network) -> dict[str, Tensor]:
    """Gradients of a batch without sensor a."""
    source = batch(TWO, 6, (16,))
    masks = {"a": torch.zeros(6, dtype=torch.bool), "b": source.present["b"]}
    source = Batch(source.inputs, masks, source.target)
    F.cross_entropy(model(source).prediction, source.target).backward()
    return {k: p.grad for k, p in model.by_path[0].items() if p.grad is not None}


@pytest.mark.parametrize("kind", [TINY, Architecture("lite", width=4, embedding=8)])
def test_an_absent_sensor_gives_its_block_and_encoder_exactly_zero(kind: Architecture) -> None:
    model = kind.build({m: (c, 16) for m, c in TWO.items()}, 3)
    initialise(model, Streams(0))
    with torch.no_grad():  # away from the start, where B = 0 stops gradients anyway
        for path, p in model.by_path[0].items():
            if path.endswith("lora_B"):
                p.copy_(random(*p.shape, seed=7) / 10)
    found = absent(model)
    of_a = [path for path in found if path.startswith(("encoders.a.", "fusion.blocks.a."))]
    of_b = [path for path in found if path.startswith(("encoders.b.", "fusion.blocks.b."))]
    assert len(of_a) == len(of_b) > 2
    assert not any(found[path].any() for path in of_a)
    assert all(found[path].any() for path in of_b)
    assert any(found[path].any() for path in found if path.startswith("fusion.shared."))


def test_the_fusion_of_moment_has_the_size_of_the_specification() -> None:
    made = LoRABlocks(dict.fromkeys(("acc", "gyro", "hr", "mag"), 512), 512)
    trained = {path: p.numel() for path, p in made.named_parameters() if p.requires_grad}
    assert sum(trained.values()) == 8 * 2048 + 512 * 8 == 20_480
    assert trained["shared.lora_B"] == 512 * 8
    assert sum(p.numel() for p in made.parameters()) - 20_480 == 512 * 2048


def test_states_carry_adapters_between_models() -> None:
    models = [TINY.build({"a": (3, 16)}, 3) for _ in range(2)]
    for seed, model in enumerate(models):
        initialise(model, Streams(seed))
    source = batch({"a": 3}, 4, (16,))
    State.of(models[0]).load_into(models[1])
    assert same_bits(models[0](source).prediction, models[1](source).prediction)
