"""Generated windows in [0, 1] to be reconstructed, with a small model for each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from communis.core.contract import Batch, Model
from communis.core.streams import Streams
from communis.core.tasks import Classification
from communis.data.sources.synthetic import Synthetic
from communis.models.network import initialise
from communis.models.sglt import Sglt
from communis.models.zoo import Architecture

CLASSES = 5
TINY = Architecture("tokens", fusion="sglt", embedding=16, sglt=Sglt(layers=1, heads=2))


@dataclass(frozen=True)
class Scene:
    """A model as a server starts with it, and samples of clients."""

    model: Model
    task: Classification
    batches: list[Batch]  # of one window each


def pictures(count: int, streams: Streams, kind: Architecture = TINY, size: int = 12) -> Scene:
    """Depth images: somebody stands in front of a slanting wall."""
    draw = streams.generator("pictures")
    rows, columns = np.mgrid[:size, :size] / (size - 1)
    images = []
    for _ in range(count):
        wall = draw.uniform(0.5, 0.8) + draw.uniform(-0.3, 0.2) * columns
        x, near, lean = draw.uniform(0.3, 0.7), draw.uniform(0.05, 0.25), draw.uniform(-0.2, 0.2)
        middle = x + lean * (0.6 - rows)
        torso = ((columns - middle) / 0.16) ** 2 + ((rows - 0.68) / 0.34) ** 2 < 1
        head = ((columns - x - 0.4 * lean) / 0.1) ** 2 + ((rows - 0.2) / 0.13) ** 2 < 1
        images.append(np.where(torso | head, near, wall)[None])
    return _scene(np.array(images), "depth", "image", kind, streams)


def movements(count: int, streams: Streams, kind: Architecture = TINY, steps: int = 32) -> Scene:
    """Windows of three channels over time, from the lowest to the highest value of each window."""
    source = Synthetic(clients=1, modalities=1, windows=count, steps=steps, noise=0.1)
    x = source.load(streams).inputs["m0"]
    low, high = x.min((1, 2), keepdims=True), x.max((1, 2), keepdims=True)
    return _scene((x - low) / (high - low), "acc", "series", kind, streams)


def _scene(
    windows: np.ndarray, name: str, kind: str, model: Architecture, streams: Streams
) -> Scene:
    with streams.torch("build"):
        made = model.build({name: windows.shape[1:]}, CLASSES, {name: kind})
    initialise(made, streams)
    labels = streams.generator("labels").integers(0, CLASSES, len(windows))
    batches = [_alone(name, x, int(y)) for x, y in zip(windows, labels, strict=True)]
    return Scene(made, Classification(CLASSES), batches)


def _alone(name: str, window: np.ndarray, label: int) -> Batch:
    inputs: Mapping[str, Tensor] = {name: torch.from_numpy(window.astype(np.float32))[None]}
    return Batch(inputs, {name: torch.ones(1, dtype=torch.bool)}, torch.tensor([label]))
