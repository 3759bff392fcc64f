"""Per-modality encoders: (B, channels, ...) -> (B, features).

All but Dense pool over time or space at the end, so one set of weights serves windows of any
length.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.models.convpool import ConvPool


class Encoder(nn.Module):
    """The base of all encoders."""

    shortest: ClassVar[int] = 4  # fewest steps of a series; the zoo uses Dense for shorter ones
    features: int  # size of the output


class CNN1d(Encoder):
    """Two convolutions over time, each with max-pooling by two and ReLU; the mean over time."""

    def __init__(self, channels: int, width: int = 32, kernel: int = 5) -> None:
        super().__init__()
        self.features = 2 * width
        self.conv1 = ConvPool(channels, width, kernel)
        self.conv2 = ConvPool(width, 2 * width, kernel)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] < 4:
            raise ValueError(f"windows of {x.shape[-1]} steps: two poolings need at least 4")
        features: Tensor = self.conv2(self.conv1(x.transpose(1, 2)))
        # `mean` has the same bits, but its gradient is materialised for every step.
        return features.sum(1) / features.shape[1]


class CNN1dNorm(Encoder):
    """The same with BatchNorm after each convolution.

    Computed as a 2-D convolution on (B, C, 1, T) in channels-last layout with the ReLU after the
    pooling, which a CPU does in about half the time of Conv1d-ReLU-MaxPool1d.
    """

    def __init__(self, channels: int, width: int = 32, kernel: int = 5) -> None:
        super().__init__()
        self.features = 2 * width
        self.conv1 = nn.Conv2d(channels, width, (1, kernel), padding=(0, kernel // 2))
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, (1, kernel), padding=(0, kernel // 2))
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in stubs

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        x = F.relu(F.max_pool2d(self.norm1(self.conv1(x)), (1, 2)))
        x = F.relu(F.max_pool2d(self.norm2(self.conv2(x)), (1, 2)))
        return x.mean((2, 3))


class ReLUConv(nn.Conv2d):
    """A convolution that starts as suits a ReLU after it (He et al. 2015). With torch's own start a
    signal shrinks from layer to layer, and training begins with a long standstill."""

    def reset_parameters(self) -> None:
        nn.init.kaiming_normal_(self.weight, nonlinearity="relu")
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class TPN(Encoder):
    """Three convolutions over time without padding, each with ReLU and dropout; the largest value
    over time. The trunk of the transformation prediction network (arXiv:1907.11879).

    Weights are (width, channels, 1, kernel) in channels-last layout, as above. ReLU may change
    places with dropout and with the maximum, so the last one comes after the pooling. Measured in
    benchmarks/encoders.
    """

    sizes: ClassVar[tuple[int, int, int]] = (32, 64, 96)  # scaled to 2 * width at the end
    kernels: ClassVar[tuple[int, int, int]] = (24, 16, 8)
    shortest = sum(kernels) - 2

    def __init__(self, channels: int, width: int, dropout: float = 0.1) -> None:
        super().__init__()
        self.features = 2 * width
        first, second, last = (max(1, n * self.features // self.sizes[-1]) for n in self.sizes)
        self.conv1 = ReLUConv(channels, first, (1, self.kernels[0]))
        self.conv2 = ReLUConv(first, second, (1, self.kernels[1]))
        self.conv3 = ReLUConv(second, last, (1, self.kernels[2]))
        self.dropout = nn.Dropout(dropout)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in stubs

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        x = self.dropout(F.relu(self.conv1(x)))
        x = self.dropout(F.relu(self.conv2(x)))
        return F.relu(F.adaptive_max_pool2d(self.dropout(self.conv3(x)), 1)).flatten(1)


class TPNMini(TPN):
    """TPN with fewer channels and shorter kernels, for low sampling rates and small machines."""

    sizes = (16, 32, 64)
    kernels = (8, 5, 3)
    shortest = sum(kernels) - 2


class Lite(Encoder):
    """Two strided convolutions over time, each with ReLU; the mean over time. Without BatchNorm,
    which would learn the statistics of absent sensors where they are fed as zeros.

    The layout is channels-last as above, which is faster than Conv1d; benchmarks/encoders measures
    it.
    """

    shortest = 1  # short windows are padded
    steps: ClassVar[int] = 1  # number of steps to which time is averaged

    def __init__(self, channels: int, width: int = 32, kernel: int = 5) -> None:
        super().__init__()
        last = 2 * width // self.steps
        self.features = last * self.steps
        taps: dict[str, Any] = {
            "kernel_size": (1, kernel),
            "stride": (1, 2),
            "padding": (0, kernel // 2),
        }
        self.conv1 = nn.Conv2d(channels, last // 2, **taps)
        self.conv2 = nn.Conv2d(last // 2, last, **taps)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in stubs

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        x = F.relu(self.conv1(x), inplace=True)
        x = F.relu(self.conv2(x), inplace=True)
        return F.adaptive_avg_pool2d(x, (1, self.steps)).flatten(1)


class Wide(Lite):
    """Lite with eight remaining steps of time, which the fusion layer distinguishes."""

    steps = 8


class CNN2d(Encoder):
    """Two strided convolutions over an image-like window (CSI packets x subcarriers, depth), then
    the mean over space."""

    def __init__(self, channels: int, width: int = 16, kernel: int = 3, norm: bool = False) -> None:
        super().__init__()
        self.features = 2 * width
        self.conv1 = nn.Conv2d(channels, width, kernel, stride=2, padding=kernel // 2)
        self.norm1 = nn.BatchNorm2d(width) if norm else nn.Identity()
        self.conv2 = nn.Conv2d(width, 2 * width, kernel, stride=2, padding=kernel // 2)
        self.norm2 = nn.BatchNorm2d(2 * width) if norm else nn.Identity()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in stubs

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(1) if x.ndim == 3 else x  # (B, packets, subcarriers) is one plane
        x = F.relu(self.norm1(self.conv1(x.contiguous(memory_format=torch.channels_last))))
        return F.relu(self.norm2(self.conv2(x))).mean((2, 3))


class Points(Encoder):
    """Two layers applied to every point, then the maximum of each feature: the result does not
    depend on the order of the points, nor on repeated points."""

    def __init__(self, channels: int, width: int = 32) -> None:
        super().__init__()
        self.features = 2 * width
        self.point1 = nn.Linear(channels, width)
        self.point2 = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        points = F.relu(self.point1(x.transpose(1, 2)))
        return F.relu(self.point2(points)).amax(1)


class Dense(Encoder):
    """One layer over all values of a window, for windows of very few steps."""

    def __init__(self, values: int, width: int = 32) -> None:
        super().__init__()
        self.features = 2 * width
        self.layer = nn.Linear(values, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.layer(x.flatten(1)))


class GRU(Encoder):
    """One recurrent layer over time; its last state."""

    def __init__(self, channels: int, width: int = 32, stride: int = 2) -> None:
        super().__init__()
        self.features, self.stride = 2 * width, stride
        self.gru = nn.GRU(channels, 2 * width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        _, last = self.gru(x[..., :: self.stride].transpose(1, 2))
        final: Tensor = last[0]
        return final


class Transformer(Encoder):
    """Patches of the window as tokens with sinusoidal positions, pre-norm self-attention blocks,
    the mean over tokens."""

    def __init__(
        self, channels: int, width: int = 32, patch: int = 8, blocks: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.features = 2 * width
        self.embed = nn.Conv1d(channels, 2 * width, patch, stride=patch)
        self.blocks = nn.ModuleList([AttentionBlock(2 * width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(2 * width)

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, -x.shape[-1] % self.embed.stride[0]))
        tokens = self.embed(x).transpose(1, 2)
        tokens = tokens + positions(tokens.shape[1], self.features).to(tokens)
        for block in self.blocks:
            tokens = block(tokens)
        features: Tensor = self.norm(tokens)
        return features.mean(1)


class AttentionBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for t in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        x = x + self.mix(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


def positions(length: int, width: int) -> Tensor:
    """Returns the sinusoidal position code (length, width)."""
    angles = torch.arange(length)[:, None] * torch.exp(
        torch.arange(0, width, 2) * (-math.log(10_000.0) / width)
    )
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[:, :width]
