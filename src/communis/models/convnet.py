"""The three ConvNets of FedAPA (Table II): encoders of different size for different devices, whose
embeddings have the same size.

A block is a convolution with a stride of two and without bias, BatchNorm and ReLU. Then comes the
mean over space. Windows (channels, rows, columns) get kernels of 3 x 3; series (channels, steps)
get the analogue with three taps over time, computed as a 2-D convolution; rows of features
(channels, 1) get fully connected layers of the same sizes, as other taps would see padding alone.
Channels-last layout is measured in benchmarks/encoders.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.models.encoders import Encoder
from communis.models.temporal import normed

Axes = Literal[0, 1, 2]


class ConvNet(Encoder):
    """Blocks, the mean over space, and a 1 x 1 convolution to the embedding, which is a linear
    layer after the mean. Short windows are padded."""

    shortest = 1
    sizes: ClassVar[
        tuple[int, ...]
    ] = ()  # channels of all blocks; empty: one of the embedding size

    def __init__(self, channels: int, width: int = 128, axes: Axes = 1) -> None:
        """axes: number of axes that kernels cover; 0: none, for a row of features."""
        super().__init__()
        self.features = 2 * width
        self.axes = axes
        sizes = channels, *(self.sizes or (self.features,))
        self.blocks = nn.ModuleList(map(Block, sizes[:-1], sizes[1:], [axes] * len(sizes)))
        self.embed = nn.Linear(sizes[-1], self.features) if self.sizes else nn.Identity()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in stubs

    def forward(self, x: Tensor) -> Tensor:
        if self.axes == 0:
            x = x.flatten(1)
        else:
            x = x.unsqueeze(2) if x.ndim == 3 else x
            x = x.contiguous(memory_format=torch.channels_last)
        for block in self.blocks:
            x = block(x)
        if self.axes:
            # `mean` is slower: its gradient is materialised for every position.
            x = x.sum((2, 3)) / (x.shape[2] * x.shape[3])
        features: Tensor = self.embed(x)
        return features


class TinyConvNet4(ConvNet):
    """A single block with as many channels as the embedding: the fewest parameters, but more
    computation than MiddleConvNet4, as all channels cover half of the rows and columns."""


class MiddleConvNet4(ConvNet):
    sizes = (16, 32)


class LargeConvNet4(ConvNet):
    sizes = (16, 32, 64, 128, 256)


class Block(nn.Module):
    def __init__(self, channels: int, width: int, axes: Axes) -> None:
        super().__init__()
        self.conv: nn.Module
        self.norm: nn.BatchNorm1d | nn.BatchNorm2d
        if axes == 0:
            self.conv = nn.Linear(channels, width, bias=False)
            self.norm = nn.BatchNorm1d(width)
        else:
            kernel, stride, padding = ((3, 3), 2, 1) if axes == 2 else ((1, 3), (1, 2), (0, 1))
            self.conv = nn.Conv2d(channels, width, kernel, stride, padding, bias=False)
            self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(normed(self.norm, self.conv(x)), inplace=True)
