"""The smallest windows, fleets, clients and cards that the unit tests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from communis import Batch, Card, Client, FedAvg, Fleet, Windows
from communis.core.streams import Streams
from communis.core.tasks import Classification
from communis.fleet.clients import FleetClients
from communis.models.network import Network, initialise
from communis.models.zoo import Architecture

TINY = Architecture(width=4, embedding=6)
TINY_NORM = Architecture(width=4, embedding=6, norm=True)


def windows(
    split: Sequence[int] = (0,) * 10,
    owner: Sequence[int] | None = None,
    channels: Mapping[str, int] | None = None,
    steps: int = 12,
    **changes: Any,
) -> Windows:
    """Standard normal windows of three classes, one per entry of `split`."""
    rng, n = np.random.default_rng(3), len(split)
    made: dict[str, Any] = {
        "inputs": {
            m: rng.standard_normal((n, c, steps), dtype=np.float32)
            for m, c in (channels or {"a": 2, "b": 1}).items()
        },
        "target": rng.integers(0, 3, n),
        "owner": np.zeros(n, np.int64) if owner is None else np.array(owner),
        "split": np.array(split, np.int8),
        "task": Classification(3),
    }
    return Windows(**(made | changes))


def bound(data: Windows, method: Any = None, **changes: Any) -> FleetClients:
    return FleetClients(Fleet.of(data, **({"models": (TINY,)} | changes)), method or FedAvg())


def client(
    data: Windows | None = None, method: Any = None, round: int = 1, **changes: Any
) -> Client:
    """The first client of a fleet, its model freshly initialised."""
    fleet = bound(windows() if data is None else data, method, **changes)
    return fleet.client(0, round, fresh=True)


def card(
    params: Mapping[str, tuple[int, ...]] | None = None, samples: int = 1, id: int = 0
) -> Card:
    sizes = {"classes": 3, "outputs": 3, "embedding": 2}
    return Card(id, ("a",), params or {}, samples, {"a": samples}, sizes)


def shapes(kind: Architecture, channels: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """Windows that the architecture takes, for `Architecture.build`."""
    return {m: (c, 8, 8) if kind.encoder == "cnn2d" else (c, 16) for m, c in channels.items()}


def network(kind: Architecture, channels: Mapping[str, int], outputs: int = 3) -> Network:
    model = kind.build(shapes(kind, channels), outputs)
    initialise(model, Streams(0))
    return model


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def batch(
    channels: Mapping[str, int], size: int = 6, shape: tuple[int, ...] = (16,), seed: int = 0
) -> Batch:
    """Every modality present, targets 0, 1, 2, 0, ..."""
    return Batch(
        {m: random(size, c, *shape, seed=seed + i) for i, (m, c) in enumerate(channels.items())},
        {m: torch.ones(size, dtype=torch.bool) for m in channels},
        torch.arange(size) % 3,
    )


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Equal in type, shape and every bit; +0 and -0 are told apart, NaN equals NaN."""
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.detach().contiguous().numpy().tobytes() == b.detach().contiguous().numpy().tobytes()
    )
