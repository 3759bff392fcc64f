"""Medians: the weighted coordinate-wise and geometric median, for K problems at once.

The geometric median minimises F(z) = sum_n p_n |x_n - z|. F depends on distances only, so the
search takes place in at most N dimensions: a QR decomposition of the differences from the
coordinate-wise median preserves all distances. A whole model is therefore read only twice, for any
number of steps. A step is the better one of

- Weiszfeld's step in the form of Vardi and Zhang (PNAS 2000). It never increases F and does not get
  stuck at a point that is not the optimum, but alone it may take thousands of steps;
- Newton's step or a fraction of it. Near the optimum it doubles the number of correct digits.

The search starts at the best one of the points and of their coordinate-wise median. Of the points,
only the best one can be the optimum; once F is lower, the search meets no point again. Distances
therefore need no smoothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 2**18  # numbers that are processed in double precision at a time
SAME = 1e-6  # shares of the weight that differ by less are equal, because weights are float32
MEETS = 1e-12  # z meets a point within this part of the point's distance from the origin
HALVINGS = 12  # fractions of Newton's step that are tried
RIDGE = 1e-9  # keeps Newton's step finite if all points lie on a line


@dataclass(frozen=True)
class CoordinateMedian:
    """The median of every coordinate; with two values in the middle, their mean."""

    def __call__(self, points: Tensor, weights: Tensor) -> Tensor:
        share = shares(weights)
        return torch.cat([middle(block, share) for block in blocks(points)], -1).to(points.dtype)


@dataclass(frozen=True)
class GeometricMedian:
    """The point with the least weighted mean distance from all points."""

    steps: int = 50  # maximum number
    tolerance: float = 1e-6  # length of the last step, relative to the harmonic mean of distances

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
    """Yields (N, K, D) in double precision, in blocks of coordinates."""
    n, k, d = points.shape
    width = max(1, BLOCK // (n * k))
    return (points[..., first : first + width].double() for first in range(0, d, width))


def shares(weights: Tensor) -> Tensor:
    """Returns (N, K) weights as shares of the sum for each problem; 0 if the sum is 0."""
    weights = weights.double()
    return weights / _or_one(weights.sum(0))


def combined(points: Tensor, share: Tensor) -> Tensor:
    """Returns sum_n share_nk x_nk: (N, K, D), (N, K) -> (K, D)."""
    parts = [torch.einsum("nkd,nk->kd", block, share) for block in blocks(points)]
    return torch.cat(parts, -1).to(points.dtype)


def middle(block: Tensor, share: Tensor) -> Tensor:
    """Returns the weighted coordinate-wise median: the mean of the lowest value up to which there
    is at least half of the weight, and the lowest value up to which there is more than half."""
    x, order = block.sort(0)
    below = share[..., None].expand_as(x).gather(0, order).cumsum(0)
    last = len(x) - 1
    lower = (below < 0.5 - SAME).sum(0, keepdim=True).clamp(max=last)
    upper = (below <= 0.5 + SAME).sum(0, keepdim=True).clamp(max=last)
    centre = (x.gather(0, lower) / 2 + x.gather(0, upper) / 2)[0]
    return centre.where((share.sum(0) > 0)[:, None], 0)


def flattened(points: Tensor, share: Tensor) -> Tensor:
    """Returns points (K, N, at most N) with the same distances, up to a factor, as the given ones.
    The coordinate-wise median becomes the origin. Points without weight are placed there."""
    n, k, _ = points.shape
    r = torch.zeros(k, 0, n, dtype=torch.double)
    for block in blocks(points):
        columns = (block - middle(block, share)).where((share > 0)[..., None], 0).permute(1, 2, 0)
        r = torch.linalg.qr(torch.cat([r, columns], 1), mode="r").R
    return r.mT / _or_one(r.abs().amax((1, 2), keepdim=True))


def start(y: Tensor, p: Tensor) -> Tensor:
    """Returns the best point, unless the coordinate-wise median (the origin) is as good: between
    two equal halves on a line, it is the middle of the optima."""
    size = y.norm(dim=-1)
    apart = torch.cdist(y, y, compute_mode="donot_use_mm_for_euclid_dist") + size[:, None]
    change = (size**2)[..., None] - 2 * y @ y.mT
    rises = (p[:, None] * change / _or_one(apart)).sum(-1)  # F(y_n) - F(0), as in `rise`
    best = rises.argmin(1, keepdim=True)
    better = rises.gather(1, best) < -MEETS * size.gather(1, best)
    return y.take_along_dim(best[..., None], 1)[:, 0].where(better, 0)


def rise(y: Tensor, p: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """Returns F(new) - F(old), (..., K). It is computed from differences of squares: if a point is
    at 1e30, the two sums of distances have no digit left for the other points."""
    a = y - old[..., None, :]
    b = y - new[..., None, :]
    change = ((a + b) * (old - new)[..., None, :]).sum(-1)
    return (p * change / _or_one(a.norm(dim=-1) + b.norm(dim=-1))).sum(-1)


def step(y: Tensor, p: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a point where F is not higher than at z (K, d), for points y (K, N, d) with shares p
    (K, N), and the length (K,) of the step, relative to the harmonic mean of the distances. The
    first step away from a point is short, whatever the distance to the optimum; 1 is added to its
    length."""
    a, unit, free = pulls(y, p, z)
    total = _or_one(a.sum(-1, keepdim=True))
    pull = (p[..., None] * unit).sum(1)  # minus the gradient, without points at z
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
    """Returns Weiszfeld's a_n = p_n / |y_n - z| and the directions (y_n - z) / |y_n - z|, both 0
    for points at z, and the part max(0, 1 - p(z) / |pull|) of the others' pull that exceeds the
    weight of the points at z."""
    gap = y - z[:, None]
    distance = gap.norm(dim=-1)
    away = distance > MEETS * y.norm(dim=-1)
    inverse = (1 / distance).where(away, 0)
    unit = gap * inverse[..., None]
    held = (p * ~away).sum(-1)
    left = (1 - held / (p[..., None] * unit).sum(1).norm(dim=-1)).clamp(min=0)
    return p * inverse, unit, left.where(held > 0, 1)


def mixture(y: Tensor, p: Tensor, z: Tensor) -> Tensor:
    """Returns (K, N) shares with which the points sum up to z, by a last step of Weiszfeld's."""
    a, _, free = pulls(y, p, z)
    at_z = p.where(a == 0, 0)
    a = a / _or_one(a.sum(-1, keepdim=True))
    at_z = at_z / _or_one(at_z.sum(-1, keepdim=True))
    return free[:, None] * a + (1 - free[:, None]) * at_z


def _or_one(divisor: Tensor) -> Tensor:
    return divisor.where(divisor > 0, 1)
