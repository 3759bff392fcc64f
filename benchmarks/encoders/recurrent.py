"""Ways to compute `cnn_gru` and `cnn_gru_lite` on one thread: a training step of 64 windows of
three channels and 200 steps, in milliseconds of CPU time.

python benchmarks/encoders/recurrent.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.core.contract import Batch
from communis.models.network import Network
from communis.models.temporal import Coins, Temporal
from communis.models.zoo import architecture
from communis.run.backends.machine import keep_freed_memory

BATCH, CHANNELS, STEPS, CLASSES, REPEATS = 64, 3, 200, 12, 30
Way = Callable[[Batch], Tensor]


def plain(network: Network, dropout: bool) -> Way:
    """torch's own layers in their plain layout, with the network's parameters."""
    network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    parts: Any = network.fusion.shared

    def lite(encoder: Any, x: Tensor) -> Tensor:
        for conv, norm in ((encoder.conv1, encoder.norm1), (encoder.conv2, encoder.norm2)):
            x = F.conv1d(x, conv.weight.squeeze(2), conv.bias, stride=2, padding=2)
            x = F.relu(norm(x.unsqueeze(2)).squeeze(2))
        return x

    def full(encoder: Any, x: Tensor) -> Tensor:
        x = x.transpose(1, 2).unsqueeze(1)
        for i in (1, 2, 3, 4):
            x = F.relu(getattr(encoder, f"norm{i}")(getattr(encoder, f"conv{i}")(x)))
            x = F.dropout(x, 0.5, dropout and i < 4)
        return x.squeeze(3)

    def forward(batch: Batch) -> Tensor:
        encode = lite if "layer" in parts else full
        x = [encode(encoder, batch.inputs[m]) for m, encoder in network.encoders.items()]
        mean = torch.stack(x).mean(0)
        if encode is lite:
            embedding = parts["layer"](parts["gru"](mean.transpose(1, 2))[1][0])
        else:
            embedding = parts["layer2"](parts["layer1"](parts["gru"](mean)[0].flatten(1)))
        prediction: Tensor = network.head(embedding)
        return prediction

    return forward


class TimeMajor(nn.Module):
    """The recurrent layers of a fusion, fed with time first."""

    def __init__(self, gru: nn.GRU) -> None:
        super().__init__()
        self.gru = gru
        gru.batch_first = False

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, last = self.gru(x.transpose(0, 1).contiguous())
        return states.transpose(0, 1), last


def ways(name: str, sensors: int, dropout: bool) -> dict[str, Way]:
    """Every way with its own copy of the same parameters."""
    shapes = {f"s{i}": (CHANNELS, STEPS) for i in range(sensors)}
    ours = architecture(name).build(shapes, CLASSES)
    for module in ours.modules():
        if isinstance(module, Coins):
            module.train(dropout)
    copies = [deepcopy(ours) for _ in range(3)]
    for encoder in copies[1].encoders.values():
        if hasattr(encoder, "dropout"):
            encoder.dropout = nn.Dropout(0.5).train(dropout)
    fusion = copies[2].fusion
    assert isinstance(fusion, Temporal)
    fusion.shared["gru"] = TimeMajor(fusion.shared["gru"])  # type: ignore[arg-type]
    return {
        "plain layout": plain(copies[0], dropout),
        "channels-last, torch's dropout": lambda batch: copies[1](batch).prediction,
        "as kept, but time-major": lambda batch: copies[2](batch).prediction,
        "as kept": lambda batch: ours(batch).prediction,
    }


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    table: dict[str, list[float]] = {}
    cells = [(name, sensors) for name in ("cnn_gru_lite", "cnn_gru") for sensors in (1, 2)]
    for name, sensors in cells:
        # As samples store them: channels last.
        x = {f"s{i}": torch.randn(BATCH, STEPS, CHANNELS).movedim(-1, 1) for i in range(sensors)}
        here = torch.ones(BATCH, dtype=torch.bool)
        batch = Batch(x, dict.fromkeys(x, here), torch.arange(BATCH) % CLASSES)
        still = ways(name, sensors, dropout=False)
        expected = still["plain layout"](batch)
        for way in still:
            torch.testing.assert_close(still[way](batch), expected, rtol=1e-3, atol=1e-4, msg=way)
        chosen = ways(name, sensors, dropout=True)
        best = dict.fromkeys(chosen, float("inf"))
        for _ in range(REPEATS):
            for way, forward in chosen.items():
                start = time.thread_time()
                torch.autograd.backward(F.cross_entropy(forward(batch), batch.target))
                best[way] = min(best[way], time.thread_time() - start)
        for way, seconds in best.items():
            table.setdefault(way, []).append(seconds)
    print(f"{'':32}" + "".join(f"{f'{name}, {sensors}':18}" for name, sensors in cells))
    for way, columns in table.items():
        print(f"{way:32}" + "".join(f"{1000 * s:<18.1f}" for s in columns))


if __name__ == "__main__":
    main()
