"""Medians: the coordinate-wise and the geometric one, weighted, for K problems at once.

The geometric median minimises F(z) = sum_n p_n |x_n - z|. Only distances matter, so it is looked
for in at most N dimensions: a QR decomposition of the differences to the coordinate-wise median
keeps them all, and a whole model is read twice, however many steps there are. A step is the best of

- Weiszfeld's, in the form of Vardi and Zhang (PNAS 2000): it never leads up and does not stick at a
  point that is not the optimum. Alone it may take thousands of steps;
- Newton's, or a part of it: near the optimum it doubles the digits.

The search starts at the best of the points and of their coordinate-wise median. Only the best point
can be the optimum, and once F is below it no point is met again: no distance has to be smoothed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 2**18  # numbers that are worked on in double precision at a time
SAME = 1e-6  # shares of the weight that differ by less are equal: weights come in float32
MEETS = 1e-12  # a point is met within this part of its distance from the coordinate-wise median
HALVINGS = 12  # of Newton's step that are tried
RIDGE = 1e-9  # keeps Newton's step finite where the points are on a line


@dataclass(frozen=True)
class CoordinateMedian:
    """Every coordinate by itself; if two values are in the middle, their mean."""

    def __call__(self, points: Tensor, weights: Tensor) -> Tensor:
        share = shares(weights)
        return torch.cat([middle(block, share) for block in blocks(points)], -1).to(points.dtype)


@dataclass(frozen=True)
class GeometricMedian:
    """The point with the least mean distance from the others."""

    steps: int = 50  # at most
    tolerance: float = 1e-6  # the last step is shorter, in harmonic means of the distances

    def __call__(self, points: Tensor, weights: Tensor) -> Tensor:
        share = shares(weights)
        y, p = flattened(points, share), share.T
        z = start(y, p)
        for _ in range(self.steps):
            z, length = step(y, p, z)
            if bool((length < self.tolerance).all()):
                break
        return combined(points, mixture(y, p, z).T)


def blocks(points: Tensor) -> Iterator[Tensor]:
    """(N, K, D) in double precision, as many coordinates at a time as fit."""
    n, k, d = points.shape
    width = max(1, BLOCK // (n * k))
    return (points[..., first : first + width].double() for first in range(0, d, width))


def shares(weights: Tensor) -> Tensor:
    """(N, K) weights as shares of their problem's sum; zero where nobody has any."""
    weights = weights.double()
    return weights / _or_one(weights.sum(0))


def combined(points: Tensor, share: Tensor) -> Tensor:
    """sum_n share_nk x_nk: (N, K, D), (N, K) -> (K, D)."""
    parts = [torch.einsum("nkd,nk->kd", block, share) for block in blocks(points)]
    return torch.cat(parts, -1).to(points.dtype)


def middle(block: Tensor, share: Tensor) -> Tensor:
    """The weighted coordinate-wise median: the mean of the lowest value with at least half of the
    weight up to it and the lowest with more than half."""
    x, order = block.sort(0)
    below = share[..., None].expand_as(x).gather(0, order).cumsum(0)
    last = len(x) - 1
    lower = (below < 0.5 - SAME).sum(0, keepdim=True).clamp(max=last)
    upper = (below <= 0.5 + SAME).sum(0, keepdim=True).clamp(max=last)
    centre = (x.gather(0, lower) / 2 + x.gather(0, upper) / 2)[0]
    return centre.where((share.sum(0) > 0)[:, None], 0)


def flattened(points: Tensor, share: Tensor) -> Tensor:
    """(K, N, at most N): up to scale, points with the same distances from each other and from the
    origin as the given ones from each other and from their coordinate-wise median. Who has no
    weight is put at the origin."""
    n, k, _ = points.shape
    r = torch.zeros(k, 0, n, dtype=torch.double)
    for block in blocks(points):
        columns = (block - middle(block, share)).where((share > 0)[..., None], 0).permute(1, 2, 0)
        r = torch.linalg.qr(torch.cat([r, columns], 1), mode="r").R
    return r.mT / _or_one(r.abs().amax((1, 2), keepdim=True))


def start(y: Tensor, p: Tensor) -> Tensor:
    """The best point, unless the coordinate-wise median (the origin) is as good: between two equal
    halves on a line it is the middle of many optima."""
    size = y.norm(dim=-1)
    apart = torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist") + size[:, None]
    change = (size**2)[..., None] - 2 * y @ y.mT
    rises = (p[:, None] * change / _or_one(apart)).sum(-1)  # F(y_n) - F(0), as in `rise`
    best = rises.argmin(1, keepdim=True)
    better = rises.gather(1, best) < -MEETS * size.gather(1, best)
    return y.take_along_dim(best[..., None], 1)[:, 0].where(better, 0)


def rise(y: Tensor, p: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """F(new) - F(old), (..., K). By differences of squares: where a point is at 1e30, two sums of
    distances have no digit left for the others."""
    a, b = (y - z[..., None, :] for z in (old, new))
    change = ((a + b) * (old - new)[..., None, :]).sum(-1)
    return (p * change / _or_one(a.norm(dim=-1) + b.norm(dim=-1))).sum(-1)


def step(y: Tensor, p: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """From z (K, d) to where F is lower, or as low, for points y (K, N, d) with shares p (K, N);
    and how far that is, (K,), over the harmonic mean of the distances. Away from a point the first
    step is short, however far it is to go: it counts as one more."""
    a, unit, free = pulls(y, p, z)
    total = _or_one(a.sum(-1, keepdim=True))
    pull = (p[..., None] * unit).sum(1)  # minus the gradient, but for points at z
    weiszfeld = z + free[:, None] / total * pull
    curvature = (1 + RIDGE) * total[..., None] * torch.eye(y.shape[-1], dtype=y.dtype)
    curvature = curvature - (a[..., None] * unit).mT @ unit
    newton = torch.linalg.solve(curvature, pull)
    tried = torch.stack([weiszfeld, *(z + newton / 2**i for i in range(HALVINGS))])
    best = rise(y, p, z, tried).argmin(0)
    new = tried.take_along_dim(best[None, :, None], 0)[0]
    leaving = (free > MEETS) & (free < 1)
    return new, (new - z).norm(dim=-1) * total[:, 0] + leaving


def pulls(y: Tensor, p: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weiszfeld's a_n = p_n / |y_n - z| and the directions (y_n - z) / |y_n - z|, both 0 for points
    at z; and what those points leave of the others' pull, 1 - p(z) / |pull|, if anything."""
    gap = y - z[:, None]
    distance = gap.norm(dim=-1)
    away = distance > MEETS * y.norm(dim=-1)
    inverse = (1 / distance).where(away, 0)
    unit = gap * inverse[..., None]
    held = (p * ~away).sum(-1)
    left = (1 - held / (p[..., None] * unit).sum(1).norm(dim=-1)).clamp(min=0)
    return p * inverse, unit, left.where(held > 0, 1)


def mixture(y: Tensor, p: Tensor, z: Tensor) -> Tensor:
    """(K, N): the shares of the points in z, by a last step of Weiszfeld's."""
    a, _, free = pulls(y, p, z)
    here = p.where(a == 0, 0)
    a, here = (part / _or_one(part.sum(-1, keepdim=True)) for part in (a, here))
    return free[:, None] * a + (1 - free[:, None]) * here


def _or_one(divisor: Tensor) -> Tensor:
    return divisor.where(divisor > 0, 1)
