"""The spectral block of a matrix: r leading directions on either side, and the r x r core between.

A singular value decomposition leaves open the signs of its vectors, and the directions of those
with equal values. `leading` settles the signs; `aligned` settles both by a basis that is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Basis:
    """Orthonormal columns on either side of matrices (m, d)."""

    u: Tensor  # (m, r)
    w: Tensor  # (d, r)


def leading(matrix: Tensor, r: int) -> Basis:
    """The r leading singular directions of a matrix (m, d), fewer if it is smaller; of every pair
    the entry of u that is largest in size is positive."""
    u, _, wt = torch.linalg.svd(matrix.double(), full_matrices=False)
    u, w = u[:, :r], wt[:r].T
    signs = u.gather(0, u.abs().argmax(0, keepdim=True)).sign()
    return Basis((u * signs).to(matrix), (w * signs).to(matrix))


def aligned(basis: Basis, previous: Basis) -> Basis:
    """The same two spans, turned as near to the previous basis as they can be: orthogonal
    Procrustes on either side. So coordinates mean the same from round to round."""
    if basis.u.shape != previous.u.shape or basis.w.shape != previous.w.shape:
        found, wanted = ((tuple(b.u.shape), tuple(b.w.shape)) for b in (basis, previous))
        raise ValueError(f"bases of different sizes cannot be aligned: {found} and {wanted}")
    return Basis(_turned(basis.u, previous.u), _turned(basis.w, previous.w))


def project(delta: Tensor, basis: Basis) -> Tensor:
    """The core (..., r, r) of matrices (..., m, d)."""
    return basis.u.T @ delta @ basis.w


def lift(core: Tensor, basis: Basis) -> Tensor:
    """The matrices (..., m, d) that have this core and nothing beside it."""
    return basis.u @ core @ basis.w.T


def captured(delta: Tensor, basis: Basis) -> float:
    """The share of the energy of matrices (..., m, d) that their cores hold; 0 if there is none."""
    energy = delta.double().square().sum()
    core = project(delta, basis).double().square().sum()
    return float(core / energy) if energy > 0 else 0.0


def _turned(columns: Tensor, previous: Tensor) -> Tensor:
    left, _, right = torch.linalg.svd(columns.double().T @ previous.double(), full_matrices=False)
    turned: Tensor = columns.double() @ (left @ right)
    return turned.to(columns)
