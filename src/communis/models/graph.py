"""Layers on tokens beside SGLT: ordinary self-attention, and graph attention to the nearest tokens.

Masked tokens change nothing of the others; a sample without any gives finite numbers that nobody
reads.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.models.sglt import TokenLayer, dividing


class SoftmaxLayer(TokenLayer):
    """Every token attends to every other: time and memory grow with the square of their number."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width)
        self.heads = dividing(heads, width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def mixed(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        # Without a single token all are attended to, as a softmax over nothing is not a number.
        seen = (mask | ~mask.any(1, keepdim=True))[:, None, None]
        heard = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        mixed: Tensor = self.out(heard.transpose(1, 2).flatten(2))
        return mixed


class GraphLayer(TokenLayer):
    """Every token attends to the k nearest ones, itself included. The graph is drawn anew in each
    layer; scores are those of GATv2 (arXiv:2105.14491): a LeakyReLU of both ends of an edge, and
    then one vector per head."""

    def __init__(self, width: int, heads: int, knn: int = 8) -> None:
        super().__init__(width)
        self.heads, self.knn = dividing(heads, width), knn
        self.here, self.there = nn.Linear(width, width), nn.Linear(width, width, bias=False)
        self.score = nn.Parameter(torch.empty(heads, width // heads))
        self.out = nn.Linear(width, width)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.score, std=self.score.shape[1] ** -0.5)

    def mixed(self, x: Tensor, mask: Tensor) -> Tensor:
        index, real = nearest(x, mask, self.knn)
        there = gathered(self.there(x), index)
        edges = F.leaky_relu(self.here(x)[:, :, None] + there, 0.2)
        scores = (self._by_head(edges) * self.score).sum(-1)  # (B, L, k, heads)
        scores = scores.masked_fill(~real[..., None], torch.finfo(scores.dtype).min)
        heard = (scores.softmax(2)[..., None] * self._by_head(there)).sum(2)
        mixed: Tensor = self.out(heard.flatten(2))
        return mixed

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1)


@torch.no_grad()
def nearest(x: Tensor, mask: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of places (B, L, p): where the k nearest lie, (B, L, k), and which of these are there: with
    fewer than k in all, some are not."""
    # Their order is that of 2 x_i x_j - |x_j|^2, as |x_i|^2 is the same for all of them.
    closeness = torch.baddbmm(-x.square().sum(2)[:, None], x, x.mT, alpha=2.0)
    found = closeness.masked_fill(~mask[:, None], -torch.inf).topk(min(k, x.shape[1]))
    return found.indices, found.values > -torch.inf


def gathered(x: Tensor, index: Tensor) -> Tensor:
    """(B, L, d) at (B, L, k) -> (B, L, k, d)."""
    rows = index.flatten(1)[..., None].expand(-1, -1, x.shape[2])
    return x.gather(1, rows).view(*index.shape, x.shape[2])
