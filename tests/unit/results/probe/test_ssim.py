"""Structural similarity, where it has a closed form."""

from __future__ import annotations

import pytest
import torch

from communis.results.probe.ssim import ssim
from tests.unit.small import random

C1, C2 = 0.01**2, 0.03**2


@pytest.mark.parametrize("shape", [(1, 12, 12), (3, 9, 20), (3, 32), (1, 5), (2, 1)])
def test_equal_windows_have_similarity_one(shape: tuple[int, ...]) -> None:
    x = random(*shape)
    assert ssim(x, x.clone()) == pytest.approx(1.0, rel=1e-12)  # means are of double precision


def test_constants_differ_by_their_means_alone() -> None:
    a, b = 0.2, 0.7
    x, y = torch.full((1, 8, 8), a), torch.full((1, 8, 8), b)
    assert ssim(x, y) == pytest.approx((2 * a * b + C1) / (a * a + b * b + C1), rel=1e-6)


def test_a_shift_leaves_structure_alone() -> None:
    """As large as the window: one place, whose variance is the same in both."""
    x = random(1, 7, 7).sigmoid()
    m = float(x.double().mean())
    expected = (2 * m * (m + 0.1) + C1) / (m**2 + (m + 0.1) ** 2 + C1)
    assert ssim(x, x + 0.1) == pytest.approx(expected, rel=1e-6)


def test_contrast_and_sign() -> None:
    """Around one mean, k times the contrast gives (2 k v + C2) / ((1 + k^2) v + C2)."""
    x = random(7, 7)
    x = 0.1 * (x - x.mean())
    v = float(x.double().square().mean())
    for k in (0.5, -1.0, 0.0):
        found = ssim(0.5 + x, 0.5 + k * x)
        assert found == pytest.approx(
            (2 * k * v + C2) / ((1 + k * k) * v + C2), rel=1e-4
        )  # images are of single precision, and 0.5 + x loses digits of x


def test_it_is_symmetric_and_about_zero_for_what_has_nothing_in_common() -> None:
    x, y = random(1, 64, 64, seed=1).sigmoid(), random(1, 64, 64, seed=2).sigmoid()
    assert ssim(x, y) == pytest.approx(ssim(y, x), rel=1e-9)  # sums of double precision
    assert abs(ssim(x, y)) < 0.05


def test_the_window_slides_over_every_place() -> None:
    """A difference in one corner touches 1 of the 36 places of a 12 x 12 image."""
    x = random(1, 12, 12).sigmoid()
    y = x.clone()
    y[0, 0, 0] += 1
    corner = ssim(x[:, :7, :7], y[:, :7, :7])
    assert ssim(x, y) == pytest.approx((35 + corner) / 36, rel=1e-9)


def test_channels_of_an_image_are_averaged_and_the_span_scales() -> None:
    x, y = random(2, 8, 8, seed=3), random(2, 8, 8, seed=4)
    each = [ssim(x[i : i + 1], y[i : i + 1]) for i in (0, 1)]
    assert ssim(x, y) == pytest.approx(sum(each) / 2)
    assert ssim(255 * x, 255 * y, span=255.0) == pytest.approx(ssim(x, y), rel=1e-4)


def test_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="one shape, 2-D or 3-D"):
        ssim(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="one shape, 2-D or 3-D"):
        ssim(torch.zeros(4), torch.zeros(4))
