"""The spectral block of a matrix: its r leading singular directions on both sides, and the r x r
core between them.

A singular value decomposition does not define the signs of the singular vectors, nor the directions
of vectors with equal singular values. `leading` fixes the signs; `aligned` fixes both with a given
basis.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Basis:
    """Orthonormal columns on both sides of matrices (m, d)."""

    u: Tensor  # (m, r)
    w: Tensor  # (d, r)


def leading(matrix: Tensor, r: int) -> Basis:
    """Returns the r leading singular directions of a matrix (m, d), fewer if the matrix is smaller.
    The entry of each column of u with the largest absolute value is positive."""
    u, _, wt = torch.linalg.svd(matrix.double(), full_matrices=False)
    u = u[:, :r]
    w = wt[:r].T
    signs = u.gather(0, u.abs().argmax(0, keepdim=True)).sign()
    return Basis((u * signs).to(matrix), (w * signs).to(matrix))


def aligned(basis: Basis, previous: Basis) -> Basis:
    """Returns a basis of the same spans, rotated as near to the previous basis as possible by
    orthogonal Procrustes on both sides, so that coordinates keep their meaning from round to
    round."""
    if basis.u.shape != previous.u.shape or basis.w.shape != previous.w.shape:
        raise ValueError(
            f"bases of different sizes cannot be aligned: {_sizes(basis)} and {_sizes(previous)}"
        )
    return Basis(_rotated(basis.u, previous.u), _rotated(basis.w, previous.w))


def project(delta: Tensor, basis: Basis) -> Tensor:
    """Returns the cores (..., r, r) of matrices (..., m, d)."""
    return basis.u.T @ delta @ basis.w


def lift(core: Tensor, basis: Basis) -> Tensor:
    """Returns the matrices (..., m, d) with these cores, zero outside of the block."""
    return basis.u @ core @ basis.w.T


def captured(delta: Tensor, basis: Basis) -> float:
    """Returns the share of the energy of matrices (..., m, d) that their cores have, 0 if there is
    no energy."""
    energy = delta.double().square().sum()
    core = project(delta, basis).double().square().sum()
    return float(core / energy) if energy > 0 else 0.0


def _sizes(basis: Basis) -> str:
    return f"{tuple(basis.u.shape)}, {tuple(basis.w.shape)}"


def _rotated(columns: Tensor, previous: Tensor) -> Tensor:
    """Returns the columns, rotated within their span towards the previous columns."""
    left, _, right = torch.linalg.svd(columns.double().T @ previous.double(), full_matrices=False)
    rotated: Tensor = columns.double() @ (left @ right)
    return rotated.to(columns)
