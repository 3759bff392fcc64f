"""What a coarse sensor sees: block means by hand, shapes without data, NaN left out."""

from __future__ import annotations

import numpy as np
import pytest

from communis.data.recordings.recording import Kind
from communis.fleet.availability.detail import coarse_shape, coarsen

nan = np.nan


@pytest.mark.parametrize(
    ("kind", "shape", "coarse"),
    [
        ("series", (3, 128), (3, 32)),
        ("series", (3, 50), (3, 12)),
        ("series", (1, 2), (1, 1)),
        ("csi", (3, 114, 10), (3, 6, 10)),
        ("csi", (1, 52, 7), (1, 2, 7)),
        ("csi", (3, 5, 7), (3, 1, 7)),
        ("points", (5, 256), (5, 32)),
        ("points", (5, 9), (5, 2)),
        ("image", (1, 8, 8), (1, 4, 4)),
        ("image", (1, 5, 1), (1, 2, 1)),
    ],
)
def test_shapes_are_known_without_data(
    kind: Kind, shape: tuple[int, ...], coarse: tuple[int, ...]
) -> None:
    assert coarse_shape(shape, kind) == coarse
    x = np.random.default_rng(0).standard_normal((4, *shape), dtype=np.float32)
    found = coarsen(x, kind)
    assert found.shape == (4, *coarse)
    assert found.dtype == np.float32
    assert np.isfinite(found).all()


def test_means_are_those_of_the_blocks() -> None:
    series = np.arange(9.0)[None, None]  # two blocks: 0 to 3 and 4 to 8
    assert coarsen(series, "series").tolist() == [[[1.5, 6.0]]]
    csi = np.arange(114.0)[None, None, :, None] * np.ones(3)
    assert coarsen(csi, "csi")[0, 0, :, 0].tolist() == [9 + 19 * i for i in range(6)]
    image = np.arange(16.0).reshape(1, 1, 4, 4)
    assert coarsen(image, "image")[0, 0].tolist() == [[2.5, 4.5], [10.5, 12.5]]
    assert coarsen(np.arange(17.0)[None, None], "points")[0, 0].tolist() == [0, 8, 16]


def test_nan_is_left_out_of_means() -> None:
    series = np.array([[[1.0, nan, 3.0, nan, nan, nan, nan, nan]]])
    assert coarsen(series, "series")[0, 0] == pytest.approx([2.0, nan], nan_ok=True)
    # An image's mean is over the four pixels, not over means of rows.
    image = np.array([[[[1.0, 3.0], [8.0, nan]]]])
    assert coarsen(image, "image").ravel() == pytest.approx([4.0])
    points = np.full((1, 3, 256), nan)
    assert np.isnan(coarsen(points, "points")).all()


def test_a_cloud_that_has_points_keeps_some() -> None:
    x = np.full((2, 3, 32), np.nan, np.float32)
    x[0, :, 3:12] = np.arange(9)  # none of them at a multiple of eight but one
    x[1, :, 5] = 7.0
    found = coarsen(x, "points")
    assert found.shape == (2, 3, 4)
    assert found[0, 0, :2].tolist() == [0, 8]
    assert found[1, :, 0].tolist() == [7, 7, 7]
    assert np.isnan(found[1, :, 1:]).all()
