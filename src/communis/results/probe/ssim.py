"""Structural similarity. Wang, Bovik, Sheikh and Simoncelli, IEEE Trans. Image Processing 2004.

Of every place of a sliding window, with means m, variances v and the covariance c of what it shows
of both images,

    (2 m_x m_y + C1) (2 c + C2) / ((m_x^2 + m_y^2 + C1) (v_x + v_y + C2))

with C1 = (0.01 range)^2 and C2 = (0.03 range)^2; the similarity is the mean over all places.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def ssim(x: Tensor, y: Tensor, size: int = 7, span: float = 1.0) -> float:
    """The similarity of two windows: 1 if they are equal, about 0 if they have nothing in common.

    (channels, rows, columns): the mean over channels. (channels, steps): one image, so channels
    that move together count. The sliding window weighs all it shows alike; it is `size` wide, or as
    wide as the image if that is smaller. span: of the values that there can be."""
    if x.shape != y.shape or x.ndim not in (2, 3):
        shapes = f"{tuple(x.shape)} and {tuple(y.shape)}"
        raise ValueError(f"expected two windows of one shape, 2-D or 3-D, got {shapes}")
    a, b = (t.detach().double().reshape(-1, 1, *t.shape[-2:]) for t in (x, y))
    window = (min(size, a.shape[2]), min(size, a.shape[3]))

    def mean(t: Tensor) -> Tensor:
        return F.avg_pool2d(t, window, stride=1)

    m_a, m_b = mean(a), mean(b)
    v_a, v_b = mean(a * a) - m_a.square(), mean(b * b) - m_b.square()
    c, c1, c2 = mean(a * b) - m_a * m_b, (0.01 * span) ** 2, (0.03 * span) ** 2
    above = (2 * m_a * m_b + c1) * (2 * c + c2)
    below = (m_a.square() + m_b.square() + c1) * (v_a + v_b + c2)
    return float((above / below).mean())
