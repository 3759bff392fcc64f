"""Rules: what may stand in for the weighted mean of what clients sent, and the `[robust]` table.

A rule takes points (N, K, D) and weights (N, K) of N clients for K problems, 0 where a client has
nothing for a problem, and gives centres (K, D); a problem that nobody has something for gets zeros.
None depends on the order of the clients, all move with the points. The medians are in `median.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from communis.core.errors import CommunisError
from communis.core.reductions.median import (
    SAME,
    CoordinateMedian,
    GeometricMedian,
    blocks,
    combined,
    shares,
)
from communis.core.replies import Rule

TIE = 1e-6  # scores that differ by less, relatively, are equal


@dataclass(frozen=True)
class TrimmedMean:
    """The mean of every coordinate without its lowest and its highest `share` of the weight. With
    n equal weights and share = f / n: without the f lowest and the f highest values."""

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
        kept = kept.where(kept > SAME * own, 0)  # nothing is left over by rounding, times 1e30
        return (kept * x).sum(0) / kept.sum(0).clamp(min=1e-300)  # zeros where nobody has weight


@dataclass(frozen=True)
class MultiKrum:
    """The weighted mean of the `keep` clients whose nearest n - liars - 2 others are nearest, by
    the sum of squared distances. Blanchard et al., NeurIPS 2017.

    n are those who hold a problem; of them at most (n - 3) / 2 may be liars. Clients that tie for
    the last places share them, where the paper goes by their numbers; two holders always tie.
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
    """The one client that is nearest to its n - liars - 2 nearest others: MultiKrum with one."""

    liars: int = 1

    def __call__(self, points: Tensor, weights: Tensor) -> Tensor:
        return MultiKrum(self.liars, keep=1)(points, weights)


def _squares(points: Tensor) -> Tensor:
    """(K, N, N): squared distances. Summed up directly, so that equal points are at exactly 0 and
    the order of the clients makes no difference."""
    k, n = points.shape[1], points.shape[0]
    total = torch.zeros(k, n, n, dtype=torch.double)
    for block in blocks(points):
        x = block.transpose(0, 1).contiguous()
        total += torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist") ** 2
    return total


def _seats(scores: Tensor, keep: Tensor) -> Tensor:
    """(K, N): 1 for the `keep` (K, 1) lowest scores, 0 for the others; at the border those with
    equal scores get equal parts."""
    border = scores.sort(-1).values.gather(-1, (keep - 1).clamp(min=0))
    below = scores < border * (1 - TIE)
    tied = (scores <= border * (1 + TIE)) & ~below
    part = (keep - below.sum(-1, keepdim=True)) / tied.sum(-1, keepdim=True)
    return torch.where(below, 1.0, torch.where(tied, part, 0.0))


RuleName = Literal["mean", "geometric_median", "median", "trimmed_mean", "krum", "multi_krum"]
OWNERS = {"liars": ("krum", "multi_krum"), "trim": ("trimmed_mean",), "keep": ("multi_krum",)}


@dataclass(frozen=True)
class RobustConfig:
    """What stands in for the mean of what clients sent."""

    rule: RuleName = "mean"
    liars: int = 1  # clients that may lie; with krum and multi_krum
    trim: float = 0.2  # share of the weight left out at each end; with trimmed_mean
    keep: int = 0  # clients that are averaged, 0: all but the liars; with multi_krum

    def __post_init__(self) -> None:
        if self.rule not in get_args(RuleName):
            raise CommunisError(f"no rule {self.rule!r}; there are {', '.join(get_args(RuleName))}")
        for name, rules in OWNERS.items():
            if getattr(self, name) != getattr(type(self), name) and self.rule not in rules:
                raise CommunisError(
                    f"{name} = {getattr(self, name)} has no meaning with rule = {self.rule!r}, "
                    f"only with {' and '.join(rules)}"
                )
        if not 0 <= self.trim <= 0.49:
            raise CommunisError(
                f'trim is a share from 0 to 0.49, got {self.trim}; rule = "median" leaves out all '
                "but the middle"
            )
        for name in ("liars", "keep"):
            if getattr(self, name) < 0:
                raise CommunisError(f"{name} must not be negative, got {getattr(self, name)}")

    def make(self) -> Rule | None:
        """None: the mean."""
        return {
            "mean": None,
            "geometric_median": GeometricMedian(),
            "median": CoordinateMedian(),
            "trimmed_mean": TrimmedMean(self.trim),
            "krum": Krum(self.liars),
            "multi_krum": MultiKrum(self.liars, self.keep),
        }[self.rule]
