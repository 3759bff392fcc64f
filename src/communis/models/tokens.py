"""Tokenisers: a window -> tokens of d numbers each, for transformers that take any number of them.

token = MLP_m(values) + Fourier(position) + e_m. Positions are shares of the window (time,
frequency, rows and columns) or coordinates of a point, never indices, and no parameter depends on
the number of tokens: clients with coarse and dense sensors own the same parameters.

A token of zeros is padding. Clouds come padded with copies of their first point
(recordings/samples.py), and an absent sensor has zeros for features (network.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.core.errors import CommunisError
from communis.models.encoders import Encoder
from communis.models.graph import gathered, nearest

PATCH = 4  # steps, or rows and columns of pixels, of a token
GROUP = 3  # subcarriers of a token
FEW = 12  # with fewer subcarriers, each is a token
STRETCHES = 8  # periods of time in a token of CSI
OCTAVES = 6  # a position is encoded by waves with 1/2, 1, 2, ... 16 periods per window
REACH = 8.0  # length of a window for points, in their unit (standard deviations if normalised)


class Tokens(Encoder):
    """An encoder whose features are its tokens in sequence: (B, ...) -> (B, tokens * width)."""

    shortest = 1

    def __init__(self, tokens: int, values: int, places: int, width: int) -> None:
        super().__init__()
        self.tokens, self.width, self.features = tokens, width, tokens * width
        self.values = nn.Linear(values, width)
        self.embed = nn.Linear(width, width, bias=False)
        self.place = nn.Linear(places * 2 * OCTAVES, width, bias=False)
        self.sensor = nn.Parameter(torch.empty(width))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.sensor, std=0.2)  # about as large as the output of initial layers

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the values (B, L, values) and positions (L, p) or (B, L, p) of the tokens."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        values, places = self.cut(x)
        return self.joined(self.values(values), places).flatten(1)

    def joined(self, hidden: Tensor, places: Tensor) -> Tensor:
        tokens: Tensor = self.embed(F.gelu(hidden)) + self.place(fourier(places)) + self.sensor
        return tokens


class Series(Tokens):
    """Tokens of (channels, steps): patches of time."""

    def __init__(self, shape: Sequence[int], width: int) -> None:
        channels, steps = shape
        super().__init__(-(-steps // PATCH), channels * PATCH, 1, width)

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor]:
        patches = padded(x, 2, PATCH).reshape(*x.shape[:2], -1, PATCH)
        return patches.transpose(1, 2).flatten(2), centres(x.shape[2], PATCH, x)[:, None]


class Csi(Tokens):
    """Tokens of (antennas, subcarriers, packets): for every antenna and group of subcarriers, the
    mean and the standard deviation in each period of time."""

    def __init__(self, shape: Sequence[int], width: int) -> None:
        antennas, subcarriers, _ = shape
        tokens = antennas * -(-subcarriers // group(subcarriers))
        super().__init__(tokens, 2 * STRETCHES, 2, width)

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, antennas, subcarriers, packets = x.shape
        size = group(subcarriers)
        bands = padded(x, 2, size).reshape(batch, -1, size, packets).mean(2)
        mean = F.adaptive_avg_pool1d(bands, STRETCHES)
        square = F.adaptive_avg_pool1d(bands.square(), STRETCHES)
        # The constant bounds the gradient of the root, which is infinite at zero.
        spread = ((square - mean.square()).clamp_min(0) + 1e-4).sqrt()
        places = torch.cartesian_prod(centres(antennas, 1, x), centres(subcarriers, size, x))
        return torch.cat([mean, spread], 2), places


class Image(Tokens):
    """Tokens of (channels, rows, columns): square patches."""

    def __init__(self, shape: Sequence[int], width: int) -> None:
        channels, rows, columns = shape
        tokens = -(-rows // PATCH) * -(-columns // PATCH)
        super().__init__(tokens, channels * PATCH**2, 2, width)

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = (centres(length, PATCH, x) for length in x.shape[2:])
        x = padded(padded(x, 2, PATCH), 3, PATCH)
        patches = x.reshape(*x.shape[:2], len(rows), PATCH, len(columns), PATCH)
        values = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return values, torch.cartesian_prod(rows, columns)


class Points(Tokens):
    """Tokens of (features, points): every point with its nearest neighbours as in EdgeConv
    (arXiv:1801.07829), by the maximum of each linear feature of the differences. knn = 1: without
    neighbours."""

    def __init__(self, shape: Sequence[int], width: int, knn: int = 8) -> None:
        features, points = shape
        super().__init__(points, features, min(3, features), width)
        self.knn = knn
        self.edge = nn.Linear(features, width, bias=False) if knn > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        points = x.transpose(1, 2)
        copies = (points == points[:, :1]).all(2)
        copies[:, 0] = False
        places = points[..., :3]  # x, y, z
        hidden = self.values(points)
        if self.edge is not None:
            index, real = nearest(places, ~copies, self.knn)
            ends = self.edge(points)
            others = gathered(ends, index).masked_fill(~real[..., None], -torch.inf)
            hidden = hidden + others.amax(2) - ends
        tokens = self.joined(hidden, places / REACH)
        return tokens.masked_fill(copies[..., None], 0.0).flatten(1)


def tokenizer(modality: str, shape: Sequence[int], kind: str, width: int, knn: int = 8) -> Tokens:
    """Returns the tokeniser of a modality whose windows have this shape and kind."""
    if kind == "points" and len(shape) == 2:
        return Points(shape, width, knn)
    if kind == "csi" and len(shape) == 3:
        return Csi(shape, width)
    if kind == "series" and len(shape) == 2:
        return Series(shape, width)
    if kind in ("series", "image") and len(shape) == 3:
        return Image(shape, width)
    raise CommunisError(
        f"{modality}: no tokens can be made of windows {tuple(shape)} of kind {kind}; expected "
        "series (channels, steps), csi (antennas, subcarriers, packets), points (features, "
        "points) or image (channels, rows, columns)"
    )


def group(subcarriers: int) -> int:
    return GROUP if subcarriers >= FEW else 1


def padded(x: Tensor, axis: int, size: int) -> Tensor:
    """Repeats the last value of an axis up to a multiple of `size`."""
    more = -x.shape[axis] % size
    return torch.cat([x, *[x.narrow(axis, -1, 1)] * more], axis) if more else x


def centres(length: int, size: int, like: Tensor) -> Tensor:
    """Returns the centres of pieces of `size` steps, of which the last may be shorter, as shares of
    the length."""
    first = torch.arange(0, length, size, dtype=like.dtype, device=like.device)
    return (first + (first + size).clamp_max(length)) / (2 * length)


def fourier(places: Tensor) -> Tensor:
    """Returns the Fourier features (..., p * 2 * OCTAVES) of positions (..., p)."""
    waves = math.pi * 2.0 ** torch.arange(OCTAVES, dtype=places.dtype, device=places.device)
    angles = (places[..., None] * waves).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], -1)
