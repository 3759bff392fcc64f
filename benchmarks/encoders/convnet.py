"""Ways to compute the ConvNets on one thread: a training step of 32 windows, in milliseconds of CPU
time.

python benchmarks/encoders/convnet.py
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from communis.models.convnet import ConvNet
from communis.models.zoo import CONVNETS, ZOO
from communis.run.backends.machine import keep_freed_memory

BATCH, REPEATS = 32, 30
SHAPES = ((1, 64, 128), (1, 32, 64), (1, 420), (9, 256))


def plain(encoder: ConvNet, x: Tensor, last: bool) -> Tensor:
    """With `mean` over space, in either layout."""
    x = x.unsqueeze(2) if x.ndim == 3 else x
    # Not `contiguous`: a single channel counts as either layout.
    x = x.clone(memory_format=torch.channels_last if last else torch.contiguous_format)
    for block in encoder.blocks:
        x = block(x)
    return encoder.embed(x.mean((2, 3)))


def ways(name: str, shape: tuple[int, ...]) -> dict[str, Callable[[Tensor], Tensor]]:
    """Every way with its own copy of the same parameters, in the layout that suits it."""
    ours, first, last = (ZOO[name].build({"x": shape}, 2).encoders["x"] for _ in range(3))
    for copy in (first, last):
        copy.load_state_dict(ours.state_dict())
    first.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return {
        "plain layout": partial(plain, first, last=False),
        "channels-last": partial(plain, last, last=True),
        "ConvNet: sum / places": ours,
    }


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    print(f"{'':39}" + "".join(f"{' x '.join(map(str, shape)):<14}" for shape in SHAPES))
    for model in CONVNETS:
        table: dict[str, list[float]] = {}
        for shape in SHAPES:
            x = torch.randn(BATCH, *shape[1:], shape[0]).movedim(-1, 1)  # as samples store them
            chosen, gradient = ways(model, shape), torch.randn(BATCH, 256)
            expected = chosen["plain layout"](x)
            for name, way in chosen.items():
                torch.testing.assert_close(way(x), expected, rtol=1e-3, atol=1e-3, msg=name)
            best = dict.fromkeys(chosen, float("inf"))
            for _ in range(REPEATS):
                for name, way in chosen.items():
                    start = time.thread_time()
                    torch.autograd.backward(way(x), gradient)
                    best[name] = min(best[name], time.thread_time() - start)
            for name, seconds in best.items():
                table.setdefault(name, []).append(seconds)
        for name, columns in table.items():
            print(f"{model:16}{name:23}" + "".join(f"{1000 * s:<14.2f}" for s in columns))


if __name__ == "__main__":
    main()
