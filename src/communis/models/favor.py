"""Attention in linear time by positive random features: FAVOR+ of Performers (Choromanski et al.,
ICLR 2021, Section 2.3).

phi(x)_j = exp(w_j . x - |x|^2 / 2) / sqrt(m), with w_j normal in blocks of orthogonal ones, has
E[phi(q) . phi(k)] = exp(q . k). The w_j are drawn once from a seed that all clients have and never
again: what one client's features mean, they mean everywhere. Exponents are not shifted by a maximum
of the data; normalised queries and keys bound them.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EPSILON = 1e-6  # of attention's denominator, and of a norm


def directions(size: int, count: int, generator: torch.Generator) -> Tensor:
    """w (size, count): blocks of orthogonal columns, each as long as a normal vector."""
    blocks = -(-count // size)
    normal = torch.randn(2, blocks, size, size, generator=generator, dtype=torch.float64)
    lengths = normal[1].square().sum(-1).sqrt()
    columns = orthonormal(normal[0]) * lengths[:, None, :]
    return columns.movedim(0, 1).reshape(size, -1)[:, :count].to(torch.get_default_dtype())


def orthonormal(normal: Tensor) -> Tensor:
    """Columns of normal matrices made orthonormal, all directions being equally likely."""
    q: Tensor
    r: Tensor
    q, r = torch.linalg.qr(normal)
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


def normalised(x: Tensor) -> Tensor:
    """Vectors (..., size) with the length sqrt(size)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


def features(x: Tensor, w: Tensor) -> Tensor:
    """phi (..., m) of queries or keys (..., size), for weights exp(q . k / sqrt(size))."""
    size, count = w.shape
    x = x / math.sqrt(math.sqrt(size))
    return torch.exp(x @ w - x.square().sum(-1, keepdim=True) / 2) / math.sqrt(count)


def kernel(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """M (..., m, d) and z (..., m) of features of keys (..., L, m), which are zero for tokens that
    do not count, and values (..., L, d).

    Both are divided by the mean of z: they then depend on what tokens there are, not on how many,
    and so does the sum of M and a parameter. Without a token both are zero.
    """
    z = keys.sum(-2)
    mean = z.mean(-1, keepdim=True)
    mean = torch.where(mean > 0, mean, 1.0)
    return keys.mT @ values / mean[..., None], z / mean


def attend(queries: Tensor, matrix: Tensor, z: Tensor) -> Tensor:
    """phi(Q) M / (phi(Q) z + epsilon) for features of queries (..., L, m)."""
    return queries @ matrix / (queries @ z[..., None] + EPSILON)
