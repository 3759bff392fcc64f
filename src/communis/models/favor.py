"""Attention in linear time by positive random features: FAVOR+ of Performers (Choromanski et al.,
ICLR 2021, Section 2.3).

phi(x)_j = exp(w_j . x - |x|^2 / 2) / sqrt(m), with w_j normal in blocks of orthogonal ones, has
E[phi(q) . phi(k)] = exp(q . k).

UMEDA only states "FAVOR+ random features" and "the standard normalisation" (Section 4.1).

Deviation: queries and keys are scaled to the length sqrt(size) first (`normalised`), and exponents
    are not shifted by a maximum of the data as in Performers. The lengths bound the exponents, and
    a shift by the maximum of a batch would give every client's M a different scale.
Deviation: the w_j are drawn once, from a seed that all clients share; Performers redraw them.
    Features therefore have the same meaning for all clients.
Deviation: M and z are divided by the mean of z (`kernel`). The ratio of Equation 6 stays as it is,
    but the gate and theta_M meet an M that does not grow with the number of tokens.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EPSILON = 1e-6  # of attention's denominator, and of a norm


def directions(size: int, count: int, generator: torch.Generator) -> Tensor:
    """Returns w (size, count): blocks of orthogonal columns with the lengths of normal vectors."""
    blocks = -(-count // size)
    normal = torch.randn(2, blocks, size, size, generator=generator, dtype=torch.float64)
    lengths = normal[1].square().sum(-1).sqrt()
    columns = orthonormal(normal[0]) * lengths[:, None, :]
    return columns.movedim(0, 1).reshape(size, -1)[:, :count].to(torch.get_default_dtype())


def orthonormal(normal: Tensor) -> Tensor:
    """Returns matrices with orthonormal columns, uniformly distributed, from normal matrices."""
    q: Tensor
    r: Tensor
    q, r = torch.linalg.qr(normal)
    return q * r.diagonal(dim1=-2, dim2=-1).sign()[..., None, :]


def normalised(x: Tensor) -> Tensor:
    """Returns vectors (..., size) scaled to the length sqrt(size)."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


def features(x: Tensor, w: Tensor) -> Tensor:
    """Returns phi (..., m) of queries or keys (..., size), for weights exp(q . k / sqrt(size))."""
    size, count = w.shape
    x = x / math.sqrt(math.sqrt(size))
    return torch.exp(x @ w - x.square().sum(-1, keepdim=True) / 2) / math.sqrt(count)


def kernel(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Returns M (..., m, d) and z (..., m) from the features of keys (..., L, m), which are zero
    for masked tokens, and values (..., L, d).

    Both are divided by the mean of z, so that they and the sum of M and a parameter do not depend
    on the number of tokens. Without tokens both are zero.
    """
    z = keys.sum(-2)
    mean = z.mean(-1, keepdim=True)
    mean = torch.where(mean > 0, mean, 1.0)
    return keys.mT @ values / mean[..., None], z / mean


def attend(queries: Tensor, matrix: Tensor, z: Tensor) -> Tensor:
    """Returns phi(Q) M / (phi(Q) z + epsilon) for features of queries (..., L, m)."""
    return queries @ matrix / (queries @ z[..., None] + EPSILON)
