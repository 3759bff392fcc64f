"""Convolution over time, max-pooling by two and ReLU, as one function with its own backward pass.

For the small channel counts of sensor windows, general convolution kernels spend most of their
time on layout and on pooling indices. Here a batch is one long padded sequence in channels-last
layout, so that every tap of the kernel is a plain matrix product on a shifted view.
Pooling picks the larger of two neighbours, and its gradient follows the sign of their difference.
The same is also written in C (kernels/convpool.c), which is used where it is built, for single
precision on a CPU. benchmarks/speed measures the gain of both. The gradient cannot be
differentiated again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from communis.models.kernels import library

NARROW = 16  # with fewer input channels, one product on unfolded rows is faster than one per tap
_composed = ContextVar("composed", default=False)
_gate = torch.ops.aten.threshold_backward  # gradient where the second argument is positive, else 0


class ConvPool(nn.Module):
    """(B, T, channels) -> (B, T // 2, width): the same function as ReLU(MaxPool(Conv1d)) with
    zero padding that keeps T."""

    def __init__(self, channels: int, width: int, kernel: int) -> None:
        super().__init__()
        if kernel % 2 == 0:
            raise ValueError(f"the kernel must be odd to keep the length, got {kernel}")
        self.weight = nn.Parameter(torch.empty(kernel, channels, width))
        self.bias = nn.Parameter(torch.empty(width))

    def reset_parameters(self) -> None:
        """Initialises the weights as torch initialises a convolution."""
        bound = (self.weight.shape[0] * self.weight.shape[1]) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 3 or x.shape[2] != self.weight.shape[1]:  # C would read past its end
            raise ValueError(
                f"expected windows (B, T, {self.weight.shape[1]}), got the shape {tuple(x.shape)}"
            )
        if _composed.get() or torch.compiler.is_compiling():
            return _reference(x, self.weight, self.bias)
        kernel = library.chosen()
        out: Tensor
        if kernel is not None and _suits_kernel(x, self.weight, self.bias):
            out = _InC.apply(x, self.weight, self.bias, kernel)  # type: ignore[no-untyped-call]
        else:
            out = _ConvPool.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out


@contextmanager
def composed() -> Iterator[None]:
    """Within this context, the function is composed of torch's own operations, which torch.func can
    transform. It is slower on a CPU."""
    token = _composed.set(True)
    try:
        yield
    finally:
        _composed.reset(token)


def _reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y = F.conv1d(x.transpose(1, 2), weight.permute(2, 1, 0), bias, padding=len(weight) // 2)
    return F.relu(F.max_pool1d(y, 2)).transpose(1, 2)


def _suits_kernel(*tensors: Tensor) -> bool:
    """Whether these are non-empty tensors in single precision on a CPU, and nobody watches the
    operations of torch, as the counter of FLOPs does: it would not see the kernel's. Tensors that
    torch negates lazily do not hold their values in memory."""
    if is_in_torch_dispatch_mode():
        return False
    return all(
        t.is_cpu and t.dtype == torch.float32 and t.numel() > 0 and not t.is_neg() for t in tensors
    )


class _InC(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, kernel: library.Kernel
    ) -> Tensor:
        weight = weight.contiguous()
        out, choice = kernel.forward(x, weight, bias.contiguous())
        ctx.save_for_backward(x, weight, choice)
        ctx.kernel = kernel
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, choice = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        return *ctx.kernel.backward(x, weight, choice, gradient.resolve_neg(), wanted), None


class _ConvPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        kernel, channels, width = weight.shape
        batch, steps, _ = x.shape
        rows = batch * (steps + kernel - 1)
        # Rows at which a complete kernel fits into the long sequence.
        valid = max(0, rows - (kernel - 1))
        long = _padded(x, kernel).view(rows, channels)
        y = x.new_empty(rows, width)
        if channels < NARROW:
            taps = long.as_strided((valid, kernel * channels), (channels, 1)).contiguous()
            torch.mm(taps, weight.view(kernel * channels, width), out=y[:valid])
        else:
            taps = long
            torch.mm(long[:valid], weight[0], out=y[:valid])
            for j in range(1, kernel):
                y[:valid].addmm_(long[j : j + valid], weight[j])
        y = y.view(batch, steps + kernel - 1, width)
        half = steps // 2
        out = torch.maximum(y[:, 0 : 2 * half : 2], y[:, 1 : 2 * half : 2]).add_(bias).relu_()
        ctx.save_for_backward(taps, weight, y, out)
        ctx.steps = steps
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor]:
        taps, weight, y, out = ctx.saved_tensors
        kernel, channels, width = weight.shape
        batch, length, _ = y.shape
        half = out.shape[1]
        valid = max(0, batch * length - (kernel - 1))
        gradient = _gate(gradient, out, 0)
        into = torch.empty_like(y)  # the gradient of y: all to the larger neighbour
        into[:, 2 * half :].zero_()
        even, odd = into[:, 0 : 2 * half : 2], into[:, 1 : 2 * half : 2]
        torch.sub(y[:, 1 : 2 * half : 2], y[:, 0 : 2 * half : 2], out=even)
        _gate.grad_input(gradient, even, 0, grad_input=odd)
        torch.sub(gradient, odd, out=even)
        flat = into.view(-1, width)[:valid]
        for_weight = None
        if not ctx.needs_input_grad[1]:  # frozen
            pass
        elif channels < NARROW:
            for_weight = (taps.t() @ flat).view_as(weight)
        else:
            for_weight = torch.stack([taps[j : j + valid].t() @ flat for j in range(kernel)])
        for_x = None
        if ctx.needs_input_grad[0]:
            long = y.new_zeros(batch * length, channels)
            for j in range(kernel):
                long[j : j + valid].addmm_(flat, weight[j].t())
            for_x = long.view(batch, length, channels)[:, kernel // 2 :][:, : ctx.steps]
        return for_x, for_weight, gradient.sum((0, 1))


def _padded(x: Tensor, kernel: int) -> Tensor:
    batch, steps, channels = x.shape
    side = kernel // 2
    padded = x.new_empty(batch, steps + 2 * side, channels)
    padded[:, :side].zero_()
    padded[:, side + steps :].zero_()
    padded[:, side : side + steps] = x
    return padded
