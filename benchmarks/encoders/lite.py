"""Ways to compute the encoder of `lite` on one thread: a training step of 32 windows, in
milliseconds of CPU time.

python benchmarks/encoders/lite.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from communis.models.encoders import Lite
from communis.run.backends.machine import keep_freed_memory

BATCH, REPEATS = 32, 100
CHANNELS, STEPS = (9, 1), (25, 128, 256)


def plain(encoder: Lite, x: Tensor) -> Tensor:
    """Conv1d; the weight is viewed without its middle axis."""
    for conv in (encoder.conv1, encoder.conv2):
        x = F.relu(F.conv1d(x, conv.weight.squeeze(2), conv.bias, stride=2, padding=2))
    return x.mean(-1)


def channels_last(encoder: Lite, x: Tensor) -> Tensor:
    x = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
    return F.relu(encoder.conv2(F.relu(encoder.conv1(x)))).mean((2, 3))


def unfolded(encoder: Lite, x: Tensor) -> Tensor:
    """One product per layer on overlapping rows, gradients by autograd."""
    x = x.transpose(1, 2)
    for conv in (encoder.conv1, encoder.conv2):
        rows = F.pad(x, (0, 0, 2, 2)).unfold(1, 5, 2).flatten(2)
        x = F.relu(F.linear(rows, conv.weight.flatten(1), conv.bias))
    return x.mean(1)


def ways(channels: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Every way with its own copy of the same parameters, in the layout that suits it."""
    ours = Lite(channels)
    copies = [Lite(channels) for _ in range(3)]
    for copy in copies:
        copy.load_state_dict(ours.state_dict())
    for copy in (copies[0], copies[2]):
        copy.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return {
        "Conv1d": partial(plain, copies[0]),
        "unfolded rows, one product": partial(unfolded, copies[2]),
        "Conv2d, channels-last": partial(channels_last, copies[1]),
        "Lite: the same, ReLU in place": ours,
    }


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    table: dict[str, list[float]] = {}
    for channels in CHANNELS:
        for steps in STEPS:
            x = torch.randn(BATCH, steps, channels).movedim(-1, 1)  # as samples store them
            chosen, gradient = ways(channels), torch.randn(BATCH, 64)
            expected = chosen["Conv1d"](x)
            for name, way in chosen.items():
                torch.testing.assert_close(way(x), expected, rtol=1e-5, atol=1e-5, msg=name)
            best = dict.fromkeys(chosen, float("inf"))
            for _ in range(REPEATS):
                for name, way in chosen.items():
                    start = time.thread_time()
                    torch.autograd.backward(way(x), gradient)
                    best[name] = min(best[name], time.thread_time() - start)
            for name, seconds in best.items():
                table.setdefault(name, []).append(seconds)
    print(f"{'channels x steps':32}" + "".join(f"{c} x {s:<6}" for c in CHANNELS for s in STEPS))
    for name, columns in table.items():
        print(f"{name:32}" + "".join(f"{1000 * s:<10.2f}" for s in columns))


if __name__ == "__main__":
    main()
