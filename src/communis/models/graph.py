"""Layers on tokens beside SGLT: ordinary self-attention, and graph attention to the nearest tokens.

Masked tokens do not affect the others; a sample without tokens gives finite numbers that are not
used.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from communis.models.sglt import TokenLayer, dividing


class SoftmaxLayer(TokenLayer):
    """Every token attends to all tokens: time and memory grow with the square of their number."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width)
        self.heads = dividing(heads, width)
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def mixed(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)
        )
        # A sample without tokens attends to all positions: the softmax over none would be NaN.
        seen = (mask | ~mask.any(1, keepdim=True))[:, None, None]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        mixed: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return mixed


class GraphLayer(TokenLayer):
    """Every token attends to its k nearest tokens, itself included. The graph is computed in each
    layer. Scores are those of GATv2 (arXiv:2105.14491): a LeakyReLU of both ends of an edge, then
    one vector per head."""

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
        attended = (scores.softmax(2)[..., None] * self._by_head(there)).sum(2)
        mixed: Tensor = self.out(attended.flatten(2))
        return mixed

    def _by_head(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1)


@torch.no_grad()
def nearest(x: Tensor, mask: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the indices (B, L, k) of the k nearest of the positions (B, L, p), and which of them
    are valid: not all are if fewer than k are unmasked."""
    # The order is that of 2 x_i x_j - |x_j|^2, as |x_i|^2 is the same for all j.
    closeness = torch.baddbmm(-x.square().sum(2)[:, None], x, x.mT, alpha=2.0)
    top = closeness.masked_fill(~mask[:, None], -torch.inf).topk(min(k, x.shape[1]))
    return top.indices, top.values > -torch.inf


def gathered(x: Tensor, index: Tensor) -> Tensor:
    """Returns (B, L, k, d): the rows of x (B, L, d) at the indices (B, L, k)."""
    rows = index.flatten(1)[..., None].expand(-1, -1, x.shape[2])
    return x.gather(1, rows).view(*index.shape, x.shape[2])
