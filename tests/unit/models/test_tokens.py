"""Tokenisers: how many tokens, what they know of their place and sensor, and what never depends on
their number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from communis import Batch, CommunisError, State, Streams
from communis.core.samples import filled_cloud
from communis.fleet.availability.detail import coarse_shape, coarsen
from communis.models.network import initialise
from communis.models.tokens import Csi, Image, Points, Series, Tokens, centres, fourier, tokenizer
from communis.models.zoo import TOKENS, ZOO, architecture
from tests.unit.small import random

SHAPES: dict[str, tuple[int, ...]] = {
    "series": (3, 128),
    "csi": (3, 114, 10),
    "points": (4, 256),
    "image": (1, 32, 32),
}
WIDTH = 8


def made(kind: str, shape: tuple[int, ...], modality: str = "m", **changes: Any) -> Tokens:
    """As a network would start it; the sensor is a part of its path."""
    encoder = tokenizer(modality, shape, kind, WIDTH, **changes)
    with Streams(0).torch("build"):
        initialise(torch.nn.ModuleDict({modality: encoder}), Streams(0))
    return encoder


def tokens(encoder: Tokens, x: Tensor) -> Tensor:
    out: Tensor = encoder(x)
    assert out.shape == (len(x), encoder.features)
    return out.detach().unflatten(1, (encoder.tokens, encoder.width))


@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        ("series", (3, 128), 32),
        ("series", (3, 30), 8),  # the last one of two steps
        ("series", (420, 1), 1),
        ("csi", (3, 114, 10), 114),  # as many as UMEDA's dense Wi-Fi
        ("csi", (3, 6, 10), 18),  # and as its coarse one
        ("csi", (1, 1, 1), 1),
        ("points", (4, 256), 256),
        ("points", (2, 1), 1),
        ("image", (1, 32, 32), 64),
        ("image", (2, 5, 3), 2),
        ("series", (1, 8, 8), 4),  # what is not said to be an image, but looks like one
    ],
)
def test_a_window_becomes_so_many_tokens(kind: str, shape: tuple[int, ...], expected: int) -> None:
    encoder = made(kind, shape)
    assert (encoder.tokens, encoder.width, encoder.features) == (expected, WIDTH, expected * WIDTH)
    assert bool(tokens(encoder, random(2, *shape)).isfinite().all())


@pytest.mark.parametrize("kind", SHAPES)
def test_coarse_and_dense_clients_own_the_same(kind: Any) -> None:
    dense, coarse = SHAPES[kind], coarse_shape(SHAPES[kind], kind)
    assert coarse != dense
    fine, rough = made(kind, dense), made(kind, coarse)
    assert fine.tokens > rough.tokens
    one, other = State(dict(fine.named_parameters())), State(dict(rough.named_parameters()))
    assert list(one) == list(other)
    assert all(torch.equal(one[path], other[path]) for path in one)


@pytest.mark.parametrize("name", ["sglt", "lat", "self_attention", "gat"])
def test_so_do_whole_networks(name: str) -> None:
    kinds: dict[str, Any] = {m: m for m in SHAPES}
    coarse = {m: coarse_shape(shape, kinds[m]) for m, shape in SHAPES.items()}
    one, other = (
        {path: p.shape for path, p in ZOO[name].build(shapes, 3, kinds).by_path[0].items()}
        for shapes in (SHAPES, coarse)
    )
    assert one == other


def test_a_packet_more_or_less_needs_no_other_parameters() -> None:
    sizes = {p: [t.shape for t in made("csi", (3, 30, p)).parameters()] for p in (1, 7, 8, 100)}
    assert all(shapes == sizes[1] for shapes in sizes.values())


def smooth(shape: tuple[int, ...]) -> Tensor:
    """A window whose values change little from token to token."""
    grid = torch.meshgrid(*(torch.linspace(0, 1, n) for n in shape), indexing="ij")
    return torch.stack([(2 * axis + i).sin() for i, axis in enumerate(grid)]).sum(0)[None]


@pytest.mark.parametrize(
    ("kind", "shape", "axes"),
    [("series", (3, 96), (2,)), ("csi", (3, 108, 10), (2,)), ("image", (1, 36, 60), (2, 3))],
)
def test_a_smooth_window_sampled_less_often_gives_the_same_tokens_at_their_places(
    kind: str, shape: tuple[int, ...], axes: tuple[int, ...]
) -> None:
    """Places are shares of the window; a number in an order would be another."""
    x = rough = smooth(shape)
    for axis in axes:  # means of three, so that some middles fall on each other
        rough = rough.unflatten(axis, (-1, 3)).mean(axis + 1)
    dense, coarse = made(kind, shape), made(kind, tuple(rough.shape[1:]))
    apart = torch.cdist(coarse.cut(rough)[1], dense.cut(x)[1])
    at = apart.argmin(1)
    assert float(apart.amin(1).max()) < 1e-3
    fine, less = tokens(dense, x)[0, at], tokens(coarse, rough)[0]
    assert float((less - fine).norm()) < 0.1 * float((fine - fine.mean(0)).norm())


def test_a_coarse_cloud_has_tokens_of_the_dense_one() -> None:
    """Without neighbours, as those of a thinned cloud are farther away."""
    x = random(2, 4, 64)
    rough = torch.from_numpy(coarsen(x.numpy(), "points"))
    fine = tokens(made("points", (4, 64), knn=1), x)
    torch.testing.assert_close(tokens(made("points", (4, 8), knn=1), rough), fine[:, ::8])


def test_places_are_shares_of_the_window() -> None:
    x = torch.zeros(1)
    assert centres(8, 4, x).tolist() == [0.25, 0.75]
    assert centres(2, 4, x).tolist() == [0.5]
    assert centres(5, 4, x).tolist() == pytest.approx([0.4, 0.9])  # a fifth is left
    _, places = Image((1, 8, 16), WIDTH).cut(torch.zeros(1, 1, 8, 16))
    assert places[3:5].tolist() == [[0.25, 0.875], [0.75, 0.125]]
    _, places = Csi((2, 12, 5), WIDTH).cut(torch.zeros(1, 2, 12, 5))
    assert places[3:5].tolist() == [[0.25, 0.875], [0.75, 0.125]]


def test_waves_tell_places_apart() -> None:
    code = fourier(centres(1024, 1, torch.zeros(1))[:, None])
    assert code.shape == (1024, 12)
    assert float(torch.cdist(code, code).fill_diagonal_(9).min()) > 0.04
    at = fourier(torch.tensor([[0.25]]))[0]
    angles = torch.pi * 0.25 * 2.0 ** torch.arange(6)
    torch.testing.assert_close(at, torch.cat([angles.sin(), angles.cos()]))


@pytest.mark.parametrize("kind", ["series", "csi", "image"])
def test_equal_values_at_other_places_are_other_tokens(kind: str) -> None:
    found = tokens(made(kind, SHAPES[kind]), torch.ones(1, *SHAPES[kind]))[0]
    assert float(torch.cdist(found, found).fill_diagonal_(9).min()) > 1e-3


def test_series_are_cut_along_time() -> None:
    x = torch.arange(12.0).view(1, 2, 6)
    values, places = Series((2, 6), WIDTH).cut(x)
    assert values.tolist() == [[[0, 1, 2, 3, 6, 7, 8, 9], [4, 5, 5, 5, 10, 11, 11, 11]]]
    torch.testing.assert_close(places, torch.tensor([[2 / 6], [5 / 6]]))


def test_images_are_cut_into_squares() -> None:
    x = torch.arange(64.0).view(1, 1, 8, 8)
    values, _ = Image((1, 8, 8), WIDTH).cut(x)
    assert values[0, 1].tolist() == [4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31]


def test_csi_tells_means_and_spreads() -> None:
    x = random(2, 3, 30, 16)
    values, _ = Csi((3, 30, 16), WIDTH).cut(x)
    band = x[1, 2, 27:30].mean(0).view(8, 2)  # the last token
    torch.testing.assert_close(values[1, -1, :8], band.mean(1))
    expected = (band.var(1, correction=0) + 1e-4).sqrt()
    torch.testing.assert_close(values[1, -1, 8:], expected)


@pytest.mark.parametrize("knn", [1, 8])
def test_points_in_another_order_are_the_same_tokens_in_that_order(knn: int) -> None:
    encoder = made("points", (4, 40), knn=knn)
    x = random(3, 4, 40)
    order = torch.from_numpy(np.random.default_rng(1).permutation(40))
    torch.testing.assert_close(tokens(encoder, x[..., order]), tokens(encoder, x)[:, order])


def test_points_know_their_neighbours_and_no_others() -> None:
    encoder = made("points", (3, 12), knn=4)
    x = random(1, 3, 12)
    x[..., 6:] += 50  # two clouds, far from each other
    before, moved = tokens(encoder, x)[0], x.clone()
    moved[..., 8] += 0.5
    changed = (tokens(encoder, moved)[0] - before).abs().amax(1) > 1e-6
    assert not changed[:6].any()
    assert changed[8]
    alone = made("points", (3, 12), knn=1)
    assert alone.state_dict().keys() == encoder.state_dict().keys() - {"edge.weight"}
    changed = (tokens(alone, moved)[0] - tokens(alone, x)[0]).abs().amax(1) > 1e-6
    assert changed.nonzero().flatten().tolist() == [8]


def test_edges_are_the_largest_of_their_differences() -> None:
    encoder = made("points", (3, 5), knn=2)
    assert isinstance(encoder, Points)
    x = random(1, 3, 5)
    points = x[0].T
    closest = torch.cdist(points, points).topk(2, largest=False).indices
    hidden = torch.stack(
        [
            encoder.values(p) + (points[near] - p).matmul(encoder.edge.weight.T).amax(0)
            for p, near in zip(points, closest, strict=True)
        ]
    )
    expected = encoder.joined(hidden, points / 8)
    torch.testing.assert_close(tokens(encoder, x)[0], expected.detach())


@pytest.mark.parametrize("knn", [1, 8])
def test_padding_of_clouds_is_zero_and_changes_no_point(knn: int) -> None:
    """As samples pad them, in whatever place, with fewer points than neighbours."""
    cloud = random(2, 4, 5).numpy()
    padded = np.full((2, 4, 9), np.nan, np.float32)
    padded[..., [1, 3, 4, 6, 7]] = cloud
    filled = filled_cloud(np.moveaxis(padded, 1, -1), np.ones(2, bool))
    found = tokens(made("points", (4, 9), knn=knn), torch.from_numpy(filled).movedim(-1, 1))
    alone = tokens(made("points", (4, 5), knn=knn), torch.from_numpy(cloud))
    real = (found != 0).any(2)
    assert real.sum(1).tolist() == [5, 5]
    torch.testing.assert_close(found[:, [0, 3, 4, 6, 7]], alone)


def test_sensors_are_told_apart() -> None:
    """By a vector that each has for itself, from the start."""
    left, right = (made("series", (3, 16), modality=m) for m in ("left", "right"))
    x, apart = random(1, 3, 16), (right.sensor - left.sensor).detach()
    assert float(apart.norm()) > 0.1
    right.load_state_dict({**left.state_dict(), "sensor": right.sensor})
    shift = tokens(right, x) - tokens(left, x)
    torch.testing.assert_close(shift, apart.expand_as(shift))


@pytest.mark.parametrize("kind", SHAPES)
def test_gradients_reach_every_parameter_and_the_window(kind: str) -> None:
    encoder = made(kind, SHAPES[kind])
    x = random(2, *SHAPES[kind]).requires_grad_()
    encoder(x).square().sum().backward()
    assert x.grad is not None
    grads = [x.grad, *(p.grad for p in encoder.parameters() if p.grad is not None)]
    assert len(grads) == 1 + len([*encoder.parameters()])
    assert all(bool(g.isfinite().all()) and bool(g.any()) for g in grads)


def test_a_silent_window_has_finite_gradients() -> None:
    """Of constant CSI nothing varies, and a root has no slope at zero."""
    x = torch.zeros(2, 3, 30, 4, requires_grad=True)
    made("csi", (3, 30, 4))(x).sum().backward()
    assert x.grad is not None
    assert bool(x.grad.isfinite().all())


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        ("points", (3, 4, 5)),
        ("csi", (3, 4)),
        ("image", (3, 4)),
        ("series", (3,)),
        ("smell", (3, 4)),
    ],
)
def test_what_cannot_be_cut_is_refused(kind: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(CommunisError, match=rf"nose: no tokens .* of kind {kind}; expected series"):
        tokenizer("nose", shape, kind, WIDTH)


@pytest.mark.parametrize("name", [name for name, kind in ZOO.items() if kind.fusion in TOKENS])
def test_padding_of_clouds_makes_no_difference_to_a_model(name: str) -> None:
    model = architecture(name).build({"lidar": (4, 12)}, 3, {"lidar": "points"})
    initialise(model, Streams(0))
    cloud, here = random(2, 4, 5), torch.ones(2, dtype=torch.bool)
    padded = torch.cat([cloud, cloud[..., :1].expand(-1, -1, 7)], 2)
    alone, more = (
        model(Batch({"lidar": x}, {"lidar": here}, here.long())).embedding for x in (cloud, padded)
    )
    torch.testing.assert_close(more, alone, rtol=1e-4, atol=1e-5)
