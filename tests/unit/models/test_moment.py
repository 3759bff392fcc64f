"""MOMENT: published files read as published, windows encoded as by MOMENT itself, adapters that
change nothing at first, and sizes as printed."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from communis import CommunisError, Streams
from communis.core.extras import EXTRAS
from communis.core.groups import groups
from communis.models import moment
from communis.models.encoders import positions
from communis.models.fusion import Blocks
from communis.models.moment import Moment, Shape, load
from communis.models.network import Network, initialise
from tests.unit.small import batch, random

PLAIN = Shape(d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=3)
GATED = replace(PLAIN, feed_forward_proj="gated-gelu", num_layers=3)
PUBLISHED = Shape(512, 64, 1024, 8, 6, "gated-gelu")  # what AutonLab/MOMENT-1-small says


@pytest.fixture
def extra() -> None:
    pytest.importorskip("peft", reason="the extra `moment` is not installed")


needs_extra = pytest.mark.usefixtures("extra")


def published(folder: Path, shape: Shape = PLAIN, **said: Any) -> Path:
    """A folder with config.json and model.safetensors as AutonLab publishes them, random inside,
    with all that an encoder has no use for."""
    folder.mkdir(exist_ok=True)
    d, inner = shape.d_model, shape.num_heads * shape.d_kv
    keys = {
        "patch_embedding.mask_embedding": (d,),
        "patch_embedding.value_embedding.weight": (d, 8),
        "encoder.embed_tokens.weight": (30, d),
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": (32, 3),
        "encoder.final_layer_norm.weight": (d,),
        "head.linear.weight": (8, d),
        "head.linear.bias": (8,),
    }
    inputs = ("wi_0", "wi_1") if shape.feed_forward_proj == "gated-gelu" else ("wi",)
    for i in range(shape.num_layers):
        attention, dense = f"encoder.block.{i}.layer.0", f"encoder.block.{i}.layer.1"
        keys |= {f"{attention}.SelfAttention.{name}.weight": (inner, d) for name in "qkv"}
        keys |= {f"{attention}.SelfAttention.o.weight": (d, inner)}
        keys |= {f"{dense}.DenseReluDense.{w}.weight": (shape.d_ff, d) for w in inputs}
        keys |= {f"{dense}.DenseReluDense.wo.weight": (d, shape.d_ff)}
        keys |= {f"{part}.layer_norm.weight": (d,) for part in (attention, dense)}
    tensors = {key: random(*size, seed=i) * 0.3 for i, (key, size) in enumerate(keys.items())}
    tensors["patch_embedding.position_embedding.pe"] = positions(5000, d)[None]
    save_file(tensors, folder / "model.safetensors")
    t5 = {
        "architectures": ["T5ForConditionalGeneration"],
        "d_ff": shape.d_ff,
        "d_kv": shape.d_kv,
        "d_model": d,
        "dropout_rate": 0.1,
        "feed_forward_proj": shape.feed_forward_proj,
        "is_encoder_decoder": True,
        "layer_norm_epsilon": 1e-6,
        "model_type": "t5",
        "num_decoder_layers": shape.num_layers,
        "num_heads": shape.num_heads,
        "num_layers": shape.num_layers,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": 32,
        "tie_word_embeddings": False,
        "vocab_size": 30,
    }
    config = {
        "task_name": "reconstruction",
        "transformer_type": "encoder_only",
        "d_model": None,
        "seq_len": 512,
        "patch_len": 8,
        "patch_stride_len": 8,
        "t5_config": t5,
    }
    (folder / "config.json").write_text(json.dumps(config | said))
    return folder


def padded(folder: Path, x: Tensor) -> Tensor:
    """MOMENT's own way with a window of at most 512 steps: pad it in front, mask the padding, let
    T5 attend to whole patches only, take the mean over channels and over these."""
    import transformers

    said = json.loads((folder / "config.json").read_text())["t5_config"]
    held = load_file(folder / "model.safetensors")
    stack = transformers.T5EncoderModel(transformers.T5Config(**said)).get_encoder().eval()
    own = {k.removeprefix("encoder."): t for k, t in held.items() if k.startswith("encoder.")}
    stack.load_state_dict(own)
    mask = torch.arange(512) >= 512 - x.shape[-1]
    whole = mask.view(64, 8).all(1)
    centred = x - x.mean(-1, keepdim=True)
    scaled = centred / (centred.square().mean(-1, keepdim=True).sqrt() + 1e-5)
    full = torch.zeros(*x.shape[:2], 512)
    full[..., mask] = scaled
    full[..., ~mask] = 7.0  # whatever the padding holds
    tokens = full.view(*x.shape[:2], 64, 8) @ held["patch_embedding.value_embedding.weight"].T
    hidden = held["patch_embedding.mask_embedding"]
    tokens = torch.where(whole[:, None], tokens, hidden)
    tokens = tokens + held["patch_embedding.position_embedding.pe"][:, :64]
    rows = tokens.flatten(0, 1)
    seen = whole.long().expand(len(rows), -1)
    with torch.no_grad():
        states = stack(inputs_embeds=rows, attention_mask=seen).last_hidden_state
    return states.view(*x.shape[:2], 64, -1).mean(1)[:, whole].mean(1)


@pytest.mark.slow
@needs_extra
@pytest.mark.parametrize("shape", [PLAIN, GATED], ids=["plain", "gated"])
@pytest.mark.parametrize("steps", [8, 45, 256, 512])
def test_windows_are_encoded_as_by_moment_itself(shape: Shape, steps: int, tmp_path: Path) -> None:
    folder = published(tmp_path / "weights", shape)
    encoder = Moment(2, steps, str(folder)).eval()
    x = random(3, 2, steps) * 4 + 2
    with torch.no_grad():
        features = encoder(x)
    assert features.shape == (3, encoder.features) == (3, 16)
    torch.testing.assert_close(features, padded(folder, x), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@needs_extra
def test_long_short_and_constant_windows(tmp_path: Path) -> None:
    encoder = Moment(1, 1024, str(published(tmp_path / "weights"))).eval()
    assert encoder.positions.shape == (128, 16)
    assert encoder(random(2, 1, 1024)).isfinite().all()
    level = encoder(torch.zeros(1, 1, 64))
    torch.testing.assert_close(encoder(torch.full((1, 1, 64), 5.0)), level)
    with pytest.raises(ValueError, match="windows of 7 steps: a patch has 8"):
        encoder(torch.zeros(1, 1, 7))


def a_network() -> Network:
    parts = {m: Moment(c, 32, "random", PLAIN) for m, c in {"acc": 3, "hr": 1}.items()}
    model = Network(parts, Blocks({m: e.features for m, e in parts.items()}, 5), (), 3)
    initialise(model, Streams(1))
    return model


@pytest.mark.slow
@needs_extra
def test_only_adapters_train_travel_and_group_by_block() -> None:
    model = a_network()
    parameters, buffers = model.by_path
    adapters = [path for path in parameters if path.startswith("encoders.")]
    places = [f"layer.0.SelfAttention.{n}" for n in "qv"]
    places += [f"layer.1.DenseReluDense.{n}" for n in ("wi", "wo")]
    assert adapters == [
        f"encoders.{m}.stack.block.{i}.{place}.lora_{half}.default.weight"
        for m in ("acc", "hr")
        for i in range(2)
        for place in places
        for half in "AB"
    ]
    assert not buffers
    assert list(groups(adapters)) == [
        f"encoders.{m}.stack.block.{i}" for m in ("acc", "hr") for i in range(2)
    ]
    model(batch({"acc": 3, "hr": 1}, shape=(32,))).prediction.square().sum().backward()
    for path, parameter in model.named_parameters():
        assert (parameter.grad is not None) == (path in parameters), path
    for path in adapters:  # B = 0: the first step moves B alone
        gradient = parameters[path].grad
        assert gradient is not None
        assert bool(gradient.any()) == ("lora_B" in path)


@needs_extra
def test_adapters_start_by_path_and_from_zero() -> None:
    one, two = (a_network().by_path[0] for _ in range(2))
    for path, parameter in one.items():
        assert torch.equal(parameter, two[path])
        if "lora_B" in path:
            assert not parameter.any()
    first, second = (
        one[f"encoders.{m}.stack.block.0.layer.0.SelfAttention.q.lora_A.default.weight"]
        for m in ("acc", "hr")
    )
    assert first.any()
    assert not torch.equal(first, second)


@needs_extra
def test_adapted_layers_are_w_plus_b_times_a(tmp_path: Path) -> None:
    """Each layer by hand, and the whole encoder against one whose weights have it merged in."""
    folder = published(tmp_path / "weights", GATED)
    encoder = Moment(2, 32, str(folder)).eval()
    held = load_file(folder / "model.safetensors")
    x = random(2, 2, 32)
    before = encoder(x)
    adapted = [(path, m) for path, m in encoder.stack.named_modules() if hasattr(m, "lora_A")]
    assert len(adapted) == GATED.num_layers * 5
    for i, (path, layer) in enumerate(adapted):
        parts: Any = layer
        a, b = parts.lora_A["default"].weight, parts.lora_B["default"].weight
        nn.init.normal_(b.data, std=0.1, generator=torch.Generator().manual_seed(i))
        h = random(4, a.shape[1])
        by_hand = h @ held[f"encoder.{path}.weight"].T + h @ a.T @ b.T
        torch.testing.assert_close(layer(h), by_hand, rtol=1e-6, atol=1e-6)
        held[f"encoder.{path}.weight"] += (b @ a).detach()
    merged = published(tmp_path / "merged", GATED)
    save_file(held, merged / "model.safetensors")
    after = encoder(x)
    assert (after - before).abs().max() > 0.01
    torch.testing.assert_close(after, Moment(2, 32, str(merged)).eval()(x), rtol=1e-4, atol=1e-5)


@needs_extra
def test_training_follows_the_stream_and_copies_work() -> None:
    model = a_network().train()
    data = batch({"acc": 3, "hr": 1}, shape=(32,))

    def trained() -> Tensor:
        with Streams(2).torch("dropout"):
            return model(data).prediction

    assert torch.equal(trained(), trained())
    assert not torch.equal(trained(), model.eval()(data).prediction)
    assert torch.equal(copy.deepcopy(model)(data).prediction, model(data).prediction)


@needs_extra
def test_frozen_weights_are_read_once_and_shared(tmp_path: Path) -> None:
    folder = published(tmp_path / "weights")
    one, two = Moment(3, 32, str(folder)), Moment(1, 64, str(folder / "model.safetensors"))
    own = {path: p for path, p in one.named_parameters() if not p.requires_grad}
    assert len(own) == 19
    assert all(two.get_parameter(path) is p for path, p in own.items())
    published(folder, GATED)
    os.utime(folder / "model.safetensors", (1, 1))  # surely another time
    assert len(Moment(1, 32, str(folder)).stack.get_submodule("block")) == 3  # type: ignore[arg-type]


@needs_extra
def test_random_weights_are_fixed_and_draw_nothing_from_outside() -> None:
    shape = replace(PLAIN, d_ff=26)
    state = torch.get_rng_state()
    first = load("random", shape)
    assert torch.equal(torch.get_rng_state(), state)
    moment._random.cache_clear()
    with Streams(5).torch("anywhere"):
        again = load("random", shape)
    assert again is not first
    assert first.stack["block.1.layer.1.DenseReluDense.wi.weight"].std() > 0.1
    for path, tensor in first.stack.items():
        assert torch.equal(tensor, again.stack[path])
        assert not tensor.requires_grad


@needs_extra
@pytest.mark.parametrize(
    ("shape", "layer", "encoder", "total", "kib"),
    [(Shape(), 57_344, 344_064, 1_396_736, 5_456), (PUBLISHED, 51_200, 409_600, 1_658_880, 6_480)],
    ids=["t5-small", "published"],
)
def test_sizes_as_printed(shape: Shape, layer: int, encoder: int, total: int, kib: int) -> None:
    """Four encoders and the fusion's A (8 x 2048) and B (512 x 8): 5,457 KB in RELIEF's Table II
    is the shape of T5-small, not that of the published weights."""
    with torch.device("meta"):
        stack = moment._stack(shape)
        moment._adapt(stack)
    trained = [(path, p.shape) for path, p in stack.named_parameters() if p.requires_grad]
    sizes = {f"encoders.acc.stack.{path}": prod(size) for path, size in trained}
    by_block = [sum(sizes[path] for path in paths) for paths in groups(sizes).values()]
    assert by_block == [layer] * shape.num_layers
    assert sum(by_block) == encoder
    assert 4 * encoder + 8 * 2048 + 512 * 8 == total == kib * 1024 / 4


DOWNLOAD = r"`hf download AutonLab/MOMENT-1-small .*--local-dir moment-small`.*weights ="


def test_without_weights_the_command_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match=f"none are given: .*{DOWNLOAD}"):
        load("", PLAIN)
    folder = published(tmp_path / "weights")
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
        with pytest.raises(CommunisError, match=f"no file .*{name}; .*{DOWNLOAD}"):
            load(str(folder), PLAIN)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"d_model": 512}', "KeyError: 't5_config'"),
        ('{"t5_config": {}, "patch_len": 16}', "patch_len is 16; only 8"),
        ('{"t5_config": {}, "revin_affine": true}', "revin_affine is True; only False"),
        ('{"t5_config": {"d_ff": "many"}}', "t5_config.d_ff: expected a whole number, got 'many'"),
        ('{"t5_config": {"feed_forward_proj": "silu"}}', "'silu' is not one of 'relu'"),
    ],
)
def test_other_configurations_are_refused(text: str, found: str, tmp_path: Path) -> None:
    folder = published(tmp_path / "weights")
    (folder / "config.json").write_text(text)
    with pytest.raises(CommunisError, match=rf"config\.json: .*{found}"):
        load(str(folder), PLAIN)


@needs_extra
def test_other_tensors_are_refused(tmp_path: Path) -> None:
    file = published(tmp_path / "weights") / "model.safetensors"
    held = load_file(file)
    key = "encoder.block.1.layer.1.DenseReluDense.wo.weight"
    whole = held.pop(key)
    save_file(held, file)
    with pytest.raises(CommunisError, match=rf"{key} is missing, .* requires \(16, 24\)"):
        load(str(file), PLAIN)
    save_file(held | {key: whole[:, 1:].contiguous()}, file)
    with pytest.raises(CommunisError, match=rf"{key} has the shape \(16, 23\), .*\(16, 24\)"):
        load(str(file), PLAIN)
    file.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(CommunisError, match=r"not a readable safetensors file .*download it again"):
        load(str(file), PLAIN)


def test_without_the_extra_its_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, "moment", replace(EXTRAS["moment"], module="not_there_at_all"))
    with pytest.raises(CommunisError, match=r"pip install 'peft>=.*' 'transformers>="):
        Moment(1, 32, "random", replace(PLAIN, d_ff=28))


@pytest.mark.slow
def test_nothing_is_imported_before_it_is_needed() -> None:
    code = "import sys, communis.models.moment; print({'peft', 'transformers'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
