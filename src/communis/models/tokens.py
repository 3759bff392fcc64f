"""Tokenisers: a window -> tokens of d numbers each, for transformers that take any number of them.

token = MLP_m(values) + Fourier(place) + e_m. Places are shares of the window (time, frequency, rows
and columns) or coordinates of a point, never numbers of an order, and no parameter depends on how
many tokens there are: clients with coarse and dense sensors own the same.

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
GROUP, FEW = 3, 12  # subcarriers of a token; where there are fewer than 12, each is one
STRETCHES = 8  # of time, in a token of CSI
OCTAVES = 6  # a place is told by waves of half a period per window, one, two, ... 16
REACH = 8.0  # what counts as one window for points, in their unit: deviations, unless not scaled


class Tokens(Encoder):
    """Features are tokens one after the other: (B, ...) -> (B, tokens * width)."""

    shortest = 1

    def __init__(self, tokens: int, values: int, places: int, width: int) -> None:
        super().__init__()
        self.tokens, self.width, self.features = tokens, width, tokens * width
        self.values = nn.Linear(values, width)
        self.embed = nn.Linear(width, width, bias=False)
        self.place = nn.Linear(places * 2 * OCTAVES, width, bias=False)
        self.sensor = nn.Parameter(torch.empty(width))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.sensor, std=0.2)  # about as large as what fresh layers give

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values (B, L, values) and places (L, p) or (B, L, p) of the tokens."""
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        values, places = self.cut(x)
        return self.joined(self.values(values), places).flatten(1)

    def joined(self, hidden: Tensor, places: Tensor) -> Tensor:
        tokens: Tensor = self.embed(F.gelu(hidden)) + self.place(fourier(places)) + self.sensor
        return tokens


class Series(Tokens):
    """Of (channels, steps): patches of time."""

    def __init__(self, shape: Sequence[int], width: int) -> None:
        channels, steps = shape
        super().__init__(-(-steps // PATCH), channels * PATCH, 1, width)

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor]:
        patches = whole(x, 2, PATCH).reshape(*x.shape[:2], -1, PATCH)
        return patches.transpose(1, 2).flatten(2), centres(x.shape[2], PATCH, x)[:, None]


class Csi(Tokens):
    """Of (antennas, subcarriers, packets): for every antenna and group of subcarriers, how large
    their mean is in each stretch of time, and how much it varies there."""

    def __init__(self, shape: Sequence[int], width: int) -> None:
        antennas, subcarriers, _ = shape
        tokens = antennas * -(-subcarriers // group(subcarriers))
        super().__init__(tokens, 2 * STRETCHES, 2, width)

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, antennas, subcarriers, packets = x.shape
        size = group(subcarriers)
        bands = whole(x, 2, size).reshape(batch, -1, size, packets).mean(2)
        mean = F.adaptive_avg_pool1d(bands, STRETCHES)
        square = F.adaptive_avg_pool1d(bands.square(), STRETCHES)
        # A little is added, as a root has no slope at zero.
        spread = ((square - mean.square()).clamp_min(0) + 1e-4).sqrt()
        places = torch.cartesian_prod(centres(antennas, 1, x), centres(subcarriers, size, x))
        return torch.cat([mean, spread], 2), places


class Image(Tokens):
    """Of (channels, rows, columns): square patches."""

    def __init__(self, shape: Sequence[int], width: int) -> None:
        channels, rows, columns = shape
        tokens = -(-rows // PATCH) * -(-columns // PATCH)
        super().__init__(tokens, channels * PATCH**2, 2, width)

    def cut(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = (centres(length, PATCH, x) for length in x.shape[2:])
        x = whole(whole(x, 2, PATCH), 3, PATCH)
        patches = x.reshape(*x.shape[:2], len(rows), PATCH, len(columns), PATCH)
        values = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return values, torch.cartesian_prod(rows, columns)


class Points(Tokens):
    """Of (features, points): every point, with its nearest neighbours as EdgeConv sees them
    (arXiv:1801.07829): the largest of each linear feature of the differences. knn = 1: alone."""

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
    """Of a sensor whose windows have this shape and kind."""
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


def whole(x: Tensor, axis: int, size: int) -> Tensor:
    """With the last value of an axis again and again, up to a multiple of `size`."""
    more = -x.shape[axis] % size
    return torch.cat([x, *[x.narrow(axis, -1, 1)] * more], axis) if more else x


def centres(length: int, size: int, like: Tensor) -> Tensor:
    """The middles of pieces of a size, of which the last may be shorter, as shares of the
    length."""
    first = torch.arange(0, length, size, dtype=like.dtype, device=like.device)
    return (first + (first + size).clamp_max(length)) / (2 * length)


def fourier(places: Tensor) -> Tensor:
    """(..., p) -> (..., p * 2 * OCTAVES)."""
    waves = math.pi * 2.0 ** torch.arange(OCTAVES, dtype=places.dtype, device=places.device)
    angles = (places[..., None] * waves).flatten(-2)
    return torch.cat([angles.sin(), angles.cos()], -1)
