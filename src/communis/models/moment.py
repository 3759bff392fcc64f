"""MOMENT (Goswami et al., ICML 2024) as an encoder: frozen published weights with LoRA adapters. It
needs the extra `moment`; docs/guides/moment.md explains how to get the weights.

Only the adapters are trained and sent. Frozen weights are read once, and all encoders of a process
share the same tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from communis.core.errors import CommunisError
from communis.core.extras import require
from communis.core.settings import SchemaError, build
from communis.core.streams import Streams
from communis.models.encoders import Encoder, positions
from communis.models.lora import RANK, frozen

PATCH = 8  # steps of a token
CONTEXT = 512  # steps that MOMENT was trained on; shorter series take the last positions
ADAPTED = ("q", "v", "wi", "wi_0", "wi_1", "wo")  # queries, values and the feed-forward layers
DOWNLOAD = "hf download AutonLab/MOMENT-1-small config.json model.safetensors"
HELP = (
    f'get them with `{DOWNLOAD} --local-dir moment-small` and set [fleet] weights = "moment-small"'
)
# Settings of a published configuration, which are also the defaults; others are not supported.
SETTINGS: Mapping[str, object] = {
    "transformer_type": "encoder_only",
    "seq_len": CONTEXT,
    "patch_len": PATCH,
    "patch_stride_len": PATCH,
    "revin_affine": False,
    "value_embedding_bias": False,
    "add_positional_embedding": True,
}


@dataclass(frozen=True)
class Shape:
    """The shape of the T5 encoder, with the keys of its configuration; by default T5-small, whose
    adapters have the size that RELIEF reports."""

    d_model: int = 512
    d_kv: int = 64  # of a head
    d_ff: int = 2048
    num_layers: int = 6
    num_heads: int = 8
    feed_forward_proj: Literal["relu", "gated-gelu"] = "relu"
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-6


@dataclass(frozen=True)
class Frozen:
    shape: Shape
    embed: nn.Parameter
    stack: Mapping[str, nn.Parameter]


class Zeros(nn.Linear):
    """The second factor of an adapter, which is zero at initialisation."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


class Moment(Encoder):
    """Every channel is normalised over the window, cut into patches and encoded by T5; then follows
    the mean over patches and channels.

    MOMENT pads a window to 512 steps in front and masks the padding, including patches that are
    partly padding. No patch attends to masked patches, the mean leaves them out, and T5's biases
    depend on distances only. Leaving the masked patches out is therefore equivalent, as long as the
    others keep the last of the 64 positions.
    """

    shortest = PATCH

    def __init__(self, channels: int, steps: int, weights: str, shape: Shape | None = None) -> None:
        """`weights`: a folder with the published files, or "random": drawn with a fixed seed, in
        the given shape. The weights do not depend on the number of channels."""
        super().__init__()
        published = load(weights, shape or Shape())
        self.features = published.shape.d_model
        with torch.device("meta"):
            self.embed = nn.Linear(PATCH, self.features, bias=False)
            self.stack = _stack(published.shape)
        self.embed.weight = published.embed
        self.stack.load_state_dict(published.stack, assign=True)
        _adapt(self.stack)
        self.dropout = nn.Dropout(0.1)
        places = positions(max(CONTEXT, steps) // PATCH, self.features)
        self.positions: Tensor
        self.register_buffer("positions", places, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        patches = x.shape[-1] // PATCH
        if not patches:
            raise ValueError(f"windows of {x.shape[-1]} steps: a patch has {PATCH}")
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-5)
        tokens = self.embed(x[..., -patches * PATCH :].unfold(-1, PATCH, PATCH))
        tokens = self.dropout(tokens + self.positions[-patches:])
        states: Tensor = self.stack(inputs_embeds=tokens.flatten(0, 1)).last_hidden_state
        return states.view(tokens.shape).mean((1, 2))


def load(weights: str, shape: Shape) -> Frozen:
    """Returns the frozen weights of a folder (or of a file in it), or random ones of a shape."""
    if not weights:
        raise CommunisError(f"MOMENT needs its published weights, and none are given: {HELP}")
    if weights == "random":
        return _random(shape)
    place = Path(weights).expanduser().absolute()
    file = place if place.suffix == ".safetensors" else place / "model.safetensors"
    config = file.with_name("config.json")
    for needed in (config, file):
        if not needed.is_file():
            raise CommunisError(f"MOMENT's weights: there is no file {needed}; {HELP}")
    return _read(config, file, *_state(config), *_state(file))


def _state(file: Path) -> tuple[int, int]:
    """Returns time and size of a file: if they change, the cache below reads it again."""
    status = file.stat()
    return status.st_mtime_ns, status.st_size


@lru_cache(maxsize=2)
def _read(config: Path, file: Path, *state: int) -> Frozen:
    shape = _shape(config)
    with torch.device("meta"):
        wanted = {f"encoder.{path}": t.shape for path, t in _stack(shape).state_dict().items()}
    wanted["patch_embedding.value_embedding.weight"] = torch.Size((shape.d_model, PATCH))
    try:
        with safe_open(file, "pt") as tensors:
            offered = tensors.keys()
            held = {key: torch.Size(tensors.get_slice(key).get_shape()) for key in offered}
            _check(file, wanted, held)
            weights = {key: frozen(tensors.get_tensor(key).float()) for key in wanted}
    except (SafetensorError, OSError) as error:
        raise CommunisError(
            f"{file}: not a readable safetensors file ({error}); download it again: {HELP}"
        ) from None
    embed = weights.pop("patch_embedding.value_embedding.weight")
    return Frozen(shape, embed, {key.removeprefix("encoder."): t for key, t in weights.items()})


def _shape(config: Path) -> Shape:
    try:
        settings = json.loads(config.read_text("utf-8"))
        t5 = dict(settings["t5_config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommunisError(
            f"{config}: no configuration of MOMENT with a table t5_config "
            f"({type(error).__name__}: {error}); {HELP}"
        ) from None
    for key, value in SETTINGS.items():
        if settings.get(key, value) != value:
            raise CommunisError(f"{config}: {key} is {settings[key]!r}; only {value!r} can be read")
    known = {f.name for f in fields(Shape)}
    try:
        shape: Shape = build(Shape, {k: v for k, v in t5.items() if k in known}, "t5_config")
    except SchemaError as error:
        raise CommunisError(f"{config}: {error}") from None
    return shape


def _check(file: Path, wanted: Mapping[str, torch.Size], held: Mapping[str, torch.Size]) -> None:
    for key, shape in wanted.items():
        if held.get(key) != shape:
            problem = f"has the shape {tuple(held[key])}" if key in held else "is missing"
            raise CommunisError(
                f"{file}: {key} {problem}, and config.json beside it requires {tuple(shape)}; "
                f"the two files belong together: {HELP}"
            )


@lru_cache(maxsize=2)
def _random(shape: Shape) -> Frozen:
    with Streams(0).torch("moment"):
        embed = nn.init.orthogonal_(torch.empty(shape.d_model, PATCH), gain=2**0.5)
        stack = _stack(shape).state_dict()
    return Frozen(shape, frozen(embed), {path: frozen(t) for path, t in stack.items()})


def _stack(shape: Shape) -> nn.Module:
    """Returns T5's encoder without its word embeddings, as `transformers` initialises it.

    In training, a block keeps only its input and computes the rest again for the gradient, as in
    MOMENT's own training: 32 windows of nine channels would take several gigabytes otherwise.
    """
    require("moment")
    transformers: Any = import_module("transformers")
    model = transformers.T5EncoderModel(transformers.T5Config(**asdict(shape), vocab_size=2))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.set_input_embeddings(None)
    stack: nn.Module = model.get_encoder().requires_grad_(False)
    return stack


def _adapt(stack: nn.Module) -> None:
    """Replaces every adapted layer by y = W x + B A x, with a scale of one; the rest is frozen."""
    peft: Any = require("moment")
    adapters = peft.LoraConfig(r=RANK, lora_alpha=RANK, target_modules=list(ADAPTED))
    peft.inject_adapter_in_model(adapters, stack)
    for layer in stack.modules():
        if isinstance(layer, peft.tuners.lora.LoraLayer):
            second = layer.lora_B["default"]
            layer.lora_B["default"] = Zeros(RANK, second.out_features, bias=False)
