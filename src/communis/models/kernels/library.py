"""The convolution in C, called by address without a link to torch.

Which code computes depends on the processor and on what was installed, never on a timing: the same
machine always gives the same bits. COMMUNIS_KERNEL=torch, AVX2 or AVX512 chooses otherwise, for
instance to repeat what another machine computed.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache, lru_cache

import torch
from torch import Tensor

from communis.core.errors import CommunisError
from communis.models.kernels import build

VARIABLE = "COMMUNIS_KERNEL"
TORCH = "torch"  # no kernel


class _Shape(ctypes.Structure):
    """As in convpool.c."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            "batch",
            "steps",
            "channels",
            "kernel",
            "width",
            "batch_stride",
            "step_stride",
            "channel_stride",
        )
    )


class Kernel:
    """The library for one instruction set."""

    def __init__(self, target: str, path: str) -> None:
        self.target = target
        code = ctypes.CDLL(path)
        pointer = ctypes.c_void_p
        number = ctypes.c_int64
        self._scratch = code.convpool_scratch
        self._scratch.argtypes = [pointer]
        self._scratch.restype = number
        self._forward = code.convpool_forward
        self._forward.argtypes = [pointer] * 7
        self._forward.restype = None
        self._backward = code.convpool_backward
        self._backward.argtypes = [*[pointer] * 5, number, number, *[pointer] * 4]
        self._backward.restype = None
        code.convpool_compiler.restype = ctypes.c_char_p
        self.compiler: str = code.convpool_compiler().decode()
        self._prepared = lru_cache(maxsize=64)(self._prepare)

    def _prepare(
        self, sizes: tuple[int, ...], strides: tuple[int, ...], kernel: int, width: int
    ) -> tuple[_Shape, int]:
        """Returns the shape as C knows it, and how many floats of working memory it needs."""
        shape = _Shape(*sizes, kernel, width, *strides)
        return shape, self._scratch(ctypes.byref(shape))

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the output (B, T // 2, width), and which of two neighbours it is: 0 for neither,
        where the ReLU is closed, 1 or 2."""
        kernel, _, width = weight.shape
        shape, scratch = self._prepared(tuple(x.shape), x.stride(), kernel, width)
        out = x.new_empty(x.shape[0], x.shape[1] // 2, width)
        choice = torch.empty_like(out, dtype=torch.uint8)
        working = x.new_empty(scratch)
        self._forward(
            ctypes.byref(shape),
            x.data_ptr(),
            weight.data_ptr(),
            bias.data_ptr(),
            out.data_ptr(),
            choice.data_ptr(),
            working.data_ptr(),
        )
        return out, choice

    def backward(
        self,
        x: Tensor,
        weight: Tensor,
        choice: Tensor,
        gradient: Tensor,
        wanted: tuple[bool, bool],
    ) -> tuple[Tensor | None, Tensor | None, Tensor]:
        """Returns the gradients of x, weight and bias. wanted: whether the first two are needed."""
        kernel, _, width = weight.shape
        shape, scratch = self._prepared(tuple(x.shape), x.stride(), kernel, width)
        if gradient.stride(2) != 1:
            gradient = gradient.contiguous()
        for_x = x.new_empty(x.shape) if wanted[0] else None
        for_weight = torch.empty_like(weight) if wanted[1] else None
        for_bias = weight.new_empty(width)
        working = x.new_empty(scratch)
        self._backward(
            ctypes.byref(shape),
            x.data_ptr(),
            weight.data_ptr(),
            choice.data_ptr(),
            gradient.data_ptr(),
            gradient.stride(0),
            gradient.stride(1),
            None if for_x is None else for_x.data_ptr(),
            None if for_weight is None else for_weight.data_ptr(),
            for_bias.data_ptr(),
            working.data_ptr(),
        )
        return for_x, for_weight, for_bias


@cache
def chosen() -> Kernel | None:
    """Returns the kernel of this process; None: torch computes."""
    wanted = os.environ.get(VARIABLE)
    if not wanted:
        return load(torch.backends.cpu.get_cpu_capability())
    if wanted == TORCH:
        return None
    kernel = load(wanted)
    if kernel is None:
        raise CommunisError(
            f"{VARIABLE}={wanted}: there is no such kernel here, expected {TORCH}, or one of "
            f"{', '.join(build.TARGETS)} that is built; python -m {build.__name__} builds them"
        )
    return kernel


def load(target: str) -> Kernel | None:
    """Returns the kernel for an instruction set if it was built and can be loaded."""
    if target not in build.TARGETS:
        return None
    path = build.library(target)
    if not path.exists():
        return None
    try:
        return Kernel(target, str(path))
    except OSError:  # the folder may forbid execution
        return None


def description() -> str:
    """Returns what computes convolutions in this process, for the record of a run."""
    kernel = chosen()
    return TORCH if kernel is None else f"{kernel.target}, compiled by {kernel.compiler}"
