"""Networks with a recurrent layer over time after the fusion of their sensors.

Encoders here keep the time axis: the features of a modality are a sequence, flattened step by step.
The fusion interpolates all sequences linearly to the length of the longest one that it was built
for, and takes their mean over the present sensors. The features of other encoders, for images,
point clouds and very short series, are a sequence of one step, constant in time. Windows of every
kind and length can therefore be fused.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.models.encoders import Encoder
from communis.models.fusion import Fusion


class Timed(Encoder):
    """An encoder that keeps the time axis. It is built for a number of steps, but takes any."""


class Grid(Timed):
    """Four convolutions with BatchNorm and ReLU, all but the last with dropout, over a window as a
    picture of time by channels; two steps of time are lost. Two kernels are 2 x 2 for three
    channels, so that a single column is left, and two are 1 x 1: Harmony's layers for an
    accelerometer (Ouyang et al., MobiSys 2023). For other numbers of channels the first two kernels
    are as wide as it takes to leave a single column.
    """

    shortest = 3

    def __init__(self, channels: int, steps: int, width: int = 8) -> None:
        super().__init__()
        self.features = 2 * width * (steps - 2)
        columns = channels // 2 + 1
        self.conv1 = nn.Conv2d(1, 8 * width, (2, columns))
        self.norm1 = nn.BatchNorm2d(8 * width)
        self.conv2 = nn.Conv2d(8 * width, 8 * width, (2, channels + 1 - columns))
        self.norm2 = nn.BatchNorm2d(8 * width)
        self.conv3 = nn.Conv2d(8 * width, 4 * width, 1)
        self.norm3 = nn.BatchNorm2d(4 * width)
        self.conv4 = nn.Conv2d(4 * width, 2 * width, 1)
        self.norm4 = nn.BatchNorm2d(2 * width)
        self.dropout = Coins()
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in stubs

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv1(x.transpose(1, 2).unsqueeze(1))
        x = F.relu(self.dropout(normed(self.norm1, x)), inplace=True)  # ReLU may come last
        x = F.relu(self.dropout(normed(self.norm2, self.conv2(x))), inplace=True)
        x = F.relu(self.dropout(normed(self.norm3, self.conv3(x))), inplace=True)
        x = F.relu(normed(self.norm4, self.conv4(x)), inplace=True)
        return x.squeeze(3).transpose(1, 2).flatten(1)


class Strided(Timed):
    """Two strided convolutions over time, each with BatchNorm and ReLU; a quarter of the steps is
    left. In channels-last layout as in encoders.py; measured in benchmarks/encoders."""

    shortest = 1  # short windows are padded

    def __init__(self, channels: int, steps: int, width: int = 32, kernel: int = 5) -> None:
        super().__init__()
        self.features = 2 * width * ((steps + 3) // 4)
        across, stride, padding = (1, kernel), (1, 2), (0, kernel // 2)
        self.conv1 = nn.Conv2d(channels, width, across, stride, padding)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, across, stride, padding)
        self.norm2 = nn.BatchNorm2d(2 * width)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # missing in stubs

    def forward(self, x: Tensor) -> Tensor:
        x = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)
        x = F.relu(normed(self.norm1, self.conv1(x)), inplace=True)
        x = F.relu(normed(self.norm2, self.conv2(x)), inplace=True)
        return x.squeeze(2).transpose(1, 2).flatten(1)


class Coins(nn.Module):
    """Dropout with probability one half in channels-last layout. A value needs one random bit, so
    one byte is drawn for eight values, which is faster than torch's draw for every value."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        batch, channels, rows, columns = x.shape
        places = torch.arange(8, dtype=torch.uint8, device=x.device)
        drawn = torch.empty(-(-x.numel() // 8), 1, dtype=torch.uint8, device=x.device).random_()
        kept = (drawn >> places).bitwise_and_(1).mul_(2).view(-1)[: x.numel()]
        return x * kept.view(batch, rows, columns, channels).movedim(3, 1)


class Temporal(Fusion):
    """The mean sequence of the present sensors, for a recurrent layer."""

    open_to_any = True  # no parameter belongs to a modality

    def __init__(self, features: Mapping[str, int], channels: int, embedding: int) -> None:
        super().__init__()
        if any(size % channels for size in features.values()):
            raise ValueError(
                f"a recurrent fusion needs features that are sequences of {channels} channels, got "
                f"{dict(features)}; use fusion = 'blocks'"
            )
        self.features, self.channels = embedding, channels
        self.steps = max(features.values()) // channels
        self.shared = nn.ModuleDict()

    def fresh(self, features: Mapping[str, int]) -> Fusion:
        return type(self)(features, self.channels, self.features)

    def mean(self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]) -> Tensor:
        """Returns the mean (B, steps, channels); zeros for a sample without sensors."""
        here = {m: present[m][:, None, None] for m in features}
        total = sum(self._stretched(h).masked_fill(~here[m], 0.0) for m, h in features.items())
        return total / torch.stack(list(here.values())).sum(0).clamp_min(1)

    def _stretched(self, h: Tensor) -> Tensor:
        sequence = h.reshape(h.shape[0], h.shape[1] // self.channels, self.channels)
        if sequence.shape[1] == self.steps:
            return sequence
        return F.interpolate(sequence.mT, self.steps, mode="linear").mT


class TimeGRU(Temporal):
    """One recurrent layer over time; from its last state a layer with BatchNorm and ReLU."""

    def __init__(self, features: Mapping[str, int], channels: int, embedding: int) -> None:
        super().__init__(features, channels, embedding)
        self.shared["gru"] = nn.GRU(channels, channels, batch_first=True)
        self.shared["layer"] = Layer(channels, embedding)

    def forward(
        self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        _, last = self.shared["gru"](self.mean(features, present))
        return last[0], self.shared["layer"](last[0])


class ChannelGRU(Temporal):
    """Two recurrent layers over channels, with one channel at all times as a step; from all states
    two layers with BatchNorm and ReLU, as in Harmony. The length of windows is the input size:
    weights can be averaged only between clients whose longest windows have the same length.
    """

    units = 120  # of a recurrent layer
    hidden = 1280

    def __init__(self, features: Mapping[str, int], channels: int, embedding: int) -> None:
        super().__init__(features, channels, embedding)
        self.shared["gru"] = nn.GRU(self.steps, self.units, num_layers=2, batch_first=True)
        self.shared["layer1"] = Layer(channels * self.units, self.hidden)
        self.shared["layer2"] = Layer(self.hidden, embedding)

    def forward(
        self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        states, _ = self.shared["gru"](self.mean(features, present).mT)
        fused = states.flatten(1)
        return fused, self.shared["layer2"](self.shared["layer1"](fused))


class Layer(nn.Module):
    """A linear layer with BatchNorm and ReLU."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(normed(self.norm, self.linear(x)))


def normed(norm: nn.BatchNorm1d | nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Normalises by the statistics of the batch. A single value per channel (the last batch of an
    epoch may be one window) has no useful statistics, so it is normalised as in evaluation."""
    if x.numel() > x.shape[1]:
        out: Tensor = norm(x)
        return out
    mean, variance = norm.running_mean, norm.running_var
    return F.batch_norm(x, mean, variance, norm.weight, norm.bias, eps=norm.eps)
