"""Ways to compute the TPN encoder on one thread: a training step of 32 windows, in milliseconds.

python benchmarks/encoders/measure.py
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from communis.models.encoders import TPN, TPNMini
from communis.run.backends.machine import keep_freed_memory

Layers = Sequence[tuple[Tensor, Tensor]]  # weight, bias
BATCH, REPEATS = 32, 20


def plain(layers: Layers, p: float, x: Tensor) -> Tensor:
    """Weights (width, channels, kernel)."""
    for weight, bias in layers:
        x = F.dropout(F.relu(F.conv1d(x, weight, bias)), p)
    return x.amax(-1)


def channels_last(layers: Layers, p: float, x: Tensor) -> Tensor:
    """Weights (width, channels, 1, kernel) in channels-last layout."""
    x = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
    for weight, bias in layers:
        x = F.dropout(F.relu(F.conv2d(x, weight, bias)), p)
    return x.amax((2, 3))


def unfolded(layers: Layers, p: float, x: Tensor) -> Tensor:
    """Weights (kernel, channels, width); one product per layer, gradients by autograd."""
    x = x.transpose(1, 2)
    for weight, bias in layers:
        rows = x.unfold(1, len(weight), 1).transpose(2, 3).flatten(2)
        x = F.dropout(F.relu(F.linear(rows, weight.flatten(0, 1).t(), bias)), p)
    return x.amax(1)


def taps(layers: Layers, p: float, x: Tensor) -> Tensor:
    """Weights (kernel, channels, width); one product per tap, as in models/convpool.py."""
    x = x.transpose(1, 2)
    for weight, bias in layers:
        x = F.dropout(F.relu(Taps.apply(x, weight) + bias), p)  # type: ignore[no-untyped-call]
    return x.amax(1)


class Taps(torch.autograd.Function):
    """The batch as one long sequence; rows that reach into the next sample are cut off."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        (batch, steps, channels), kernel = x.shape, len(weight)
        long = x.contiguous().view(-1, channels)
        valid = len(long) - kernel + 1
        y = x.new_empty(len(long), weight.shape[2])
        if channels < 16:
            rows = long.as_strided((valid, kernel * channels), (channels, 1)).contiguous()
            torch.mm(rows, weight.flatten(0, 1), out=y[:valid])
        else:
            torch.mm(long[:valid], weight[0], out=y[:valid])
            for j in range(1, kernel):
                y[:valid].addmm_(long[j : j + valid], weight[j])
        ctx.save_for_backward(long, weight)
        return y.view(batch, steps, -1)[:, : steps - kernel + 1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:
        long, weight = ctx.saved_tensors
        (batch, length, width), (kernel, channels, _) = gradient.shape, weight.shape
        valid = len(long) - kernel + 1
        flat = F.pad(gradient, (0, 0, 0, kernel - 1)).view(-1, width)[:valid]
        rows = long.as_strided((valid, kernel * channels), (channels, 1)).contiguous()
        for_weight = (flat.t() @ rows).t().reshape(weight.shape)
        if not ctx.needs_input_grad[0]:
            return None, for_weight
        for_x = torch.zeros_like(long)
        for j in range(kernel):
            for_x[j : j + valid].addmm_(flat, weight[j].t())
        return for_x.view(batch, length + kernel - 1, channels), for_weight


class Bits(nn.Module):
    """Dropout with sixteen random bits per value, four values per draw."""

    def forward(self, x: Tensor) -> Tensor:
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None)
        lost = round(0.1 * 2**16)
        keep = words.view(torch.int16)[: x.numel()] >= lost - 2**15
        return x * keep.as_strided(x.shape, x.stride()) * (2**16 / (2**16 - lost))


def ways(made: type[TPN], width: int) -> dict[str, Callable[[Tensor], Tensor]]:
    """Every way with its own copy of the same parameters, in the layout that suits it."""
    ours, without, bits = made(3, width), made(3, width, dropout=0.0), made(3, width)
    for other in (without, bits):
        other.load_state_dict(ours.state_dict())
    bits.dropout = Bits()  # type: ignore[assignment]
    values = [p.detach() for p in ours.parameters()]  # weight, bias, weight, ...

    def layers(change: Callable[[Tensor], Tensor]) -> Layers:
        return [(leaf(change(w)), leaf(b)) for w, b in zip(values[::2], values[1::2], strict=True)]

    one = layers(lambda w: w.squeeze(2).contiguous())
    two = layers(lambda w: w)
    three = layers(lambda w: w.squeeze(2).permute(2, 1, 0).contiguous())
    found = {}
    for p in (0.0, 0.1):
        for name, way, of in (
            ("Conv1d", plain, one),
            ("unfolded rows, one product", unfolded, three),
            ("taps, a product each, own backward", taps, three),
            ("Conv2d, channels-last", channels_last, two),
        ):
            found[f"{name}, dropout {p}"] = partial(way, of, p)
    return found | {
        "TPN, dropout 0.0": without,
        "TPN, dropout 0.1": ours,
        "TPN, dropout 0.1 from sixteen bits": bits,
    }


def leaf(x: Tensor) -> Tensor:
    return x.clone().requires_grad_()  # keeps the layout


def main() -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    table: dict[str, list[float]] = {}
    for made, width in ((TPN, 48), (TPNMini, 32)):
        for steps in (125, 200):
            x, gradient = torch.randn(BATCH, 3, steps), torch.randn(BATCH, 2 * width)
            chosen = ways(made, width)
            expected = chosen["Conv1d, dropout 0.0"](x)
            for name, way in chosen.items():
                if name.endswith("dropout 0.0"):
                    torch.testing.assert_close(way(x), expected, rtol=1e-5, atol=1e-5, msg=name)
            best = dict.fromkeys(chosen, float("inf"))
            for _ in range(REPEATS):
                for name, way in chosen.items():
                    start = time.perf_counter()
                    torch.autograd.backward(way(x), gradient)
                    best[name] = min(best[name], time.perf_counter() - start)
            for name, seconds in best.items():
                table.setdefault(name, []).append(seconds)
    print(f"{'':50} tpn 125  tpn 200  mini 125 mini 200")
    for name, columns in table.items():
        print(f"{name:50}" + "".join(f"{1000 * s:8.1f} " for s in columns))


if __name__ == "__main__":
    main()
