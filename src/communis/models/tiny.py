"""Tiny: a small transformer that is pretrained once and then frozen, with adapters that are trained
federatedly. It is a foundation model of time series at a size that a CPU can train.

Every channel is a separate series, so one backbone serves all sensors, whatever their number of
channels. It is trained without labels, by reconstructing masked patches.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.torch
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.samples import Scale, filled, summed
from communis.core.state import State
from communis.core.streams import Streams
from communis.data.recordings.windows import TEST, TRAIN, VAL, Windows
from communis.models.encoders import Encoder, positions
from communis.models.lora import LoRALinear
from communis.models.network import initialise

PATCH, WIDTH, INNER, BLOCKS, HEADS = 8, 64, 128, 2, 2
SHAPE = {"patch": PATCH, "width": WIDTH, "inner": INNER, "blocks": BLOCKS, "heads": HEADS}
ADAPTED = ("q", "v", "up", "down")  # the layers of a block that get adapters
RANDOM = "random"  # in place of a file: a backbone that was never trained, always the same
HELP = (
    "make them with `communis pretrain --on usc_had --output tiny.safetensors` and set [fleet] "
    'weights = "tiny.safetensors"'
)
HIDDEN = 0.3  # share of the patches that are masked in pretraining
M = TypeVar("M", bound=nn.Module)


class Backbone(Encoder):
    """Patches as tokens with sinusoidal positions, pre-norm attention blocks; the mean over patches
    and then over channels."""

    shortest = PATCH
    features = WIDTH

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(PATCH, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(BLOCKS)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.attend(self.embed(patched(x)))
        return tokens.mean(1).view(x.shape[0], -1, WIDTH).mean(1)

    def attend(self, tokens: Tensor) -> Tensor:
        tokens = tokens + positions(tokens.shape[1], WIDTH).to(tokens)
        for block in self.blocks:
            tokens = block(tokens)
        normed: Tensor = self.norm(tokens)
        return normed


class Block(nn.Module):
    """An attention block. Query, key and value are separate layers, as only some are adapted."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm1(x)
        q, k, v = (
            layer(normed).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.relu(self.up(self.norm2(x))))
        return out


class Tiny(Backbone):
    """The frozen backbone of a file with trained adapters, for any number of channels and steps."""

    def __init__(self, channels: int, steps: int, weights: str) -> None:
        super().__init__()
        self.load_state_dict(load(weights))
        self.requires_grad_(False)
        for block in self.blocks:
            for name in ADAPTED:
                setattr(block, name, LoRALinear(getattr(block, name)))


def patched(x: Tensor) -> Tensor:
    """Returns the patches (B * channels, patches, PATCH) of windows (B, channels, T): every series
    has mean zero and deviation one, and the last patch is padded with zeros."""
    x = x.flatten(0, 1)
    x = x - x.mean(-1, keepdim=True)
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5)  # a constant one stays zero
    return F.pad(x, (0, -x.shape[-1] % PATCH)).view(x.shape[0], -1, PATCH)


def load(weights: str) -> dict[str, Tensor]:
    """Returns the backbone of a file, or the untrained one."""
    if weights == RANDOM:
        return _started(Backbone, Streams()).state_dict()
    path = Path(weights).expanduser()
    if not path.is_file():
        raise CommunisError(f"weights: there is no file {path}; {HELP}")
    try:
        tensors = safetensors.torch.load_file(path)
        with safe_open(path, framework="pt") as file:
            shape = json.loads((file.metadata() or {}).get("communis", "{}")).get("shape")
    except (SafetensorError, OSError, ValueError, AttributeError) as error:
        raise CommunisError(f"weights: {path} is not readable ({error}); {HELP}") from None
    if shape != SHAPE:
        content = f"a backbone of {shape}" if shape else "something else than a pretrained backbone"
        raise CommunisError(f"weights: {path} holds {content}, expected one of {SHAPE}; {HELP}")
    with torch.device("meta"):
        expected = {name: tensor.shape for name, tensor in Backbone().state_dict().items()}
    if (held := {name: tensor.shape for name, tensor in tensors.items()}) != expected:
        wrong = min(name for name, _ in held.items() ^ expected.items())
        content = f"as {tuple(held[wrong])}" if wrong in held else "not"
        needed = f"as {tuple(expected[wrong])}" if wrong in expected else "not there"
        raise CommunisError(f"weights: {path} has {wrong} {content}, expected {needed}; {HELP}")
    if not all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values()):
        raise CommunisError(f"weights: {path} holds NaN or Inf; {HELP}")
    return tensors


@dataclass(frozen=True)
class Pretrained:
    weights: State  # of the backbone
    before: float  # mean squared error on masked patches of held-out windows before training
    after: float  # the same after training; predicting the mean gives 1

    def packed(self, **about: Any) -> bytes:
        """Returns the content of a file that `load` reads. The metadata are one entry, as the order
        of several is not kept."""
        metadata = {"shape": SHAPE, **about, "before": self.before, "after": self.after}
        return safetensors.torch.save(dict(self.weights), {"communis": json.dumps(metadata)})


def pretrain(
    windows: Windows,
    streams: Streams,
    steps: int = 500,
    batch: int = 32,
    lr: float = 3e-3,
    told: Callable[[int, float], None] = lambda step, loss: None,
) -> Pretrained:
    """Trains a backbone to reconstruct masked patches of the training windows, one modality per
    step in turn. `told` is called with every step and its loss."""
    source = _Source(windows)
    model = _started(Masked, streams)
    held_out = list(source.held_out(streams.generator("pretrain/held-out")))
    optimiser = torch.optim.Adam(model.parameters(), lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    before = model.error(held_out)
    for step in range(1, steps + 1):
        loss = model(*source.draw(step, batch, streams.generator("pretrain", step)))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        told(step, float(loss.detach()))
    state = {path: t.detach().clone() for path, t in model.backbone.state_dict().items()}
    return Pretrained(State(state), before, model.error(held_out))


class Masked(nn.Module):
    """The backbone with the parts that only pretraining needs: a token in place of a masked patch,
    and a layer that predicts the values of a patch."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()
        self.token = nn.Parameter(torch.empty(WIDTH))
        self.values = nn.Linear(WIDTH, PATCH)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.token, std=0.02)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        """Returns the mean squared error on the masked patches."""
        patches = patched(x)
        tokens = torch.where(hidden[..., None], self.token, self.backbone.embed(patches))
        predicted = self.values(self.backbone.attend(tokens))
        return F.mse_loss(predicted[hidden], patches[hidden])

    @torch.no_grad()
    def error(self, batches: list[tuple[Tensor, Tensor]]) -> float:
        return float(torch.stack([self(*batch) for batch in batches]).mean())


def _started(made: Callable[[], M], streams: Streams) -> M:
    with streams.torch("build"):  # constructors draw too, before `initialise`
        model = made()
    initialise(model, streams)
    return model


class _Source:
    """Batches of time series, normalised as in a fleet, with the mask of their patches."""

    most = 256  # held-out windows per sensor

    def __init__(self, windows: Windows) -> None:
        self.inputs = {
            m: x
            for m, x in windows.inputs.items()
            if windows.kinds.get(m, "series") == "series" and x.shape[-1] >= PATCH
        }
        self.train = _rows(windows, self.inputs, TRAIN)
        self.rest = _rows(windows, self.inputs, VAL, TEST)
        self.names = sorted(m for m in self.inputs if len(self.train[m]) and len(self.rest[m]))
        if not self.names:
            raise CommunisError(
                f"pretraining needs time series of at least {PATCH} steps in training and held-out "
                f"windows; there are {list(self.inputs) or 'none'} of that length. Take another "
                "dataset, a longer data.window, or data.shares that hold some windows out"
            )
        self.scales = {m: summed(_parts(self.inputs[m], self.train[m])) for m in self.names}

    def draw(self, step: int, size: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        m = self.names[step % len(self.names)]
        return self._batch(m, np.sort(rng.choice(self.train[m], size)), rng)

    def held_out(self, rng: np.random.Generator) -> Iterator[tuple[Tensor, Tensor]]:
        for m in self.names:
            rows = rng.permutation(self.rest[m])[: self.most]
            yield self._batch(m, np.sort(rows), rng)

    def _batch(self, m: Modality, rows: Array, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        x = np.moveaxis(self.inputs[m][rows], 1, -1)
        scale: Scale | None = self.scales[m]
        x = filled(scale.apply(x) if scale else np.array(x), np.ones(len(x), bool))
        series = torch.from_numpy(x).movedim(-1, 1)
        patches = series.shape[-1] // PATCH
        order = rng.random((len(x) * series.shape[1], patches)).argsort(1).argsort(1)
        hidden = order < max(1, round(HIDDEN * patches))
        return series[..., : patches * PATCH], torch.from_numpy(hidden)


def _rows(windows: Windows, inputs: Mapping[Modality, Array], *splits: int) -> dict[str, Array]:
    """Returns, for each modality, the windows of these splits that have it."""
    chosen = np.isin(windows.split, splits)
    return {m: np.flatnonzero(chosen & windows.present.get(m, True)) for m in inputs}


def _parts(x: Array, rows: Array, size: int = 4096) -> Iterator[Array]:
    for at in range(0, len(rows), size):
        yield x[rows[at : at + size]]
