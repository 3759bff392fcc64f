"""Robust rules: replacements for the weighted mean of clients' messages. The medians are in
`median.py`.

A rule takes points (N, K, D) and weights (N, K) of N clients for K problems and returns centres (K,
D). The weight is 0 where a client has no point for a problem; the centre is zero if no client has
one. The result does not depend on the order of the clients and is equivariant under translation.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from communis.core.reductions.median import (
    SAME,
    blocks,
    combined,
    shares,
)

TIE = 1e-6  # scores that differ by less, relatively, are equal


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of every coordinate without the lowest and the highest `share` of the weight. With n
    equal weights and share = f / n, these are the f lowest and the f highest values."""

    share: float = 0.2

    def __call__(self, points: Tensor, weights: Tensor) -> Tensor:
        share = shares(weights)
        parts = [self._kept_mean(block, share) for block in blocks(points)]
        return torch.cat(parts, -1).to(points.dtype)

    def _kept_mean(self, block: Tensor, share: Tensor) -> Tensor:
        x, order = block.sort(0)
        own = share[..., None].expand_as(x).gather(0, order)
        upper = own.cumsum(0)
        kept = upper.clamp(max=1 - self.share) - (upper - own).clamp(min=self.share)
        kept = kept.where(kept > SAME * own, 0)  # a rounding error would be multiplied by x = 1e30
        return (kept * x).sum(0) / kept.sum(0).clamp(min=1e-300)  # 0 without any weight


@dataclass(frozen=True)
class MultiKrum:
    """The weighted mean of the `keep` clients with the lowest scores. The score of a client is the
    sum of its squared distances to its nearest n - liars - 2 others (Blanchard et al., NeurIPS
    2017).

    n is the number of clients that have a point for the problem; at most (n - 3) / 2 of them may
    lie. Clients with equal scores share the last places; the paper chooses by client number. Two
    clients always have equal scores.
    """

    liars: int = 1
    keep: int = 0  # 0: all but the liars

    def __call__(self, points: Tensor, weights: Tensor) -> Tensor:
        held = (weights > 0).T  # (K, N)
        n = held.sum(1, keepdim=True)
        liars = ((n - 3) // 2).clamp(min=0, max=self.liars)
        near = _squares(points).where(held[:, None] & ~torch.eye(len(points)).bool(), torch.inf)
        sums = near.sort(-1).values.cumsum(-1)
        last = (n - liars - 3).clamp(min=0)[..., None].expand(-1, len(points), 1)
        scores = sums.gather(-1, last)[..., 0].where(held, torch.inf)
        keep = (n - liars).clamp(max=self.keep or len(points))
        return combined(points, shares(weights * _seats(scores, keep).T))


@dataclass(frozen=True)
class Krum:
    """The client with the lowest score of MultiKrum."""

    liars: int = 1

    def __call__(self, points: Tensor, weights: Tensor) -> Tensor:
        return MultiKrum(self.liars, keep=1)(points, weights)


def _squares(points: Tensor) -> Tensor:
    """Returns (K, N, N) squared distances. They are computed from differences, so that equal points
    have distance 0 and the order of the clients has no effect."""
    k, n = points.shape[1], points.shape[0]
    total = torch.zeros(k, n, n, dtype=torch.double)
    for block in blocks(points):
        x = block.transpose(0, 1).contiguous()
        total += torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    return total


def _seats(scores: Tensor, keep: Tensor) -> Tensor:
    """Returns (K, N) shares: 1 for the `keep` (K, 1) lowest scores and 0 for the others. Clients
    with equal scores at the border share the remaining places."""
    border = scores.sort(-1).values.gather(-1, (keep - 1).clamp(min=0))
    below = scores < border * (1 - TIE)
    tied = (scores <= border * (1 + TIE)) & ~below
    part = (keep - below.sum(-1, keepdim=True)) / tied.sum(-1, keepdim=True)
    return torch.where(below, 1.0, torch.where(tied, part, 0.0))
