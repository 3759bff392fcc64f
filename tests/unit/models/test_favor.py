"""Positive random features: their directions, that they estimate softmax attention, and what the
kernel depends on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from communis.models import favor
from tests.unit.small import random


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return random(*shape, seed=seed, dtype=torch.float64)


@pytest.mark.parametrize("count", [5, 8, 20])
def test_directions_are_orthogonal_in_blocks_and_as_long_as_normal_vectors(count: int) -> None:
    w = favor.directions(8, count, source()).double()
    assert w.shape == (8, count)
    for block in w.split(8, 1):
        gram = block.mT @ block
        assert torch.allclose(gram, gram.diagonal().diag(), atol=1e-5)
    many = favor.directions(8, 8000, source()).double()
    assert float(many.square().sum(0).mean()) == pytest.approx(8, rel=0.03)
    assert float(many.square().sum(0).var()) == pytest.approx(16, rel=0.1)  # chi-squared: 2 x 8
    assert torch.allclose(many @ many.mT / 8000, torch.eye(8).double(), atol=0.05)


def test_directions_come_from_their_generator_alone() -> None:
    first = favor.directions(4, 10, source(3))
    torch.rand(5)
    assert torch.equal(favor.directions(4, 10, source(3)), first)
    assert not torch.equal(favor.directions(4, 10, source(4)), first)


def test_orthonormal_columns_favour_no_direction() -> None:
    q = favor.orthonormal(torch.randn(4000, 3, 3, generator=source(), dtype=torch.float64))
    assert torch.allclose(q.mT @ q, torch.eye(3).double().expand_as(q), atol=1e-12)
    assert float(q.mean(0).abs().max()) < 0.04  # a plain QR has signs of its own


def test_normalised_vectors_have_one_length_and_zero_has_a_gradient() -> None:
    x = torch.cat([normal(3, 16), torch.zeros(1, 16).double()]).requires_grad_()
    lengths = favor.normalised(x).norm(dim=-1)
    assert lengths.tolist() == pytest.approx([4, 4, 4, 0], abs=1e-4)
    favor.normalised(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_features_are_those_of_the_formula() -> None:
    x, w = normal(2, 4), normal(4, 3, seed=1)
    y = x[1] / 4**0.25
    expected = [float(torch.exp(w[:, j] @ y - y @ y / 2)) / 3**0.5 for j in range(3)]
    assert favor.features(x, w)[1].tolist() == pytest.approx(expected, rel=1e-12)


def test_more_features_come_nearer_to_softmax_attention() -> None:
    q, k, v = (normal(12, 8, seed=i) for i in range(3))
    q, k = favor.normalised(q) / 2, favor.normalised(k) / 2  # long ones need very many features
    exact = torch.softmax(q @ k.mT / 8**0.5, -1) @ v
    errors = []
    for count in (2**4, 2**8, 2**12):
        drawn = [favor.directions(8, count, source(seed)).double() for seed in range(4)]
        found = [
            favor.attend(favor.features(q, w), *favor.kernel(favor.features(k, w), v))
            for w in drawn
        ]
        errors.append(float(torch.stack([(f - exact).norm() / exact.norm() for f in found]).mean()))
    assert errors[2] < 0.45 * errors[1] < 0.45**2 * errors[0]  # one over the root of 16 is 0.25
    assert errors[2] < 0.02


def test_the_kernel_gives_the_ratio_of_explicit_weights() -> None:
    queries, keys = normal(2, 5, 7).exp(), normal(2, 6, 7, seed=1).exp()
    values = normal(2, 6, 3, seed=2)
    weights = queries @ keys.mT
    expected = weights @ values / weights.sum(-1, keepdim=True)
    found = favor.attend(queries, *favor.kernel(keys, values))
    assert torch.allclose(found, expected, rtol=1e-5, atol=1e-5)  # ratios of sums in float32


def test_the_kernel_depends_on_what_tokens_there_are_not_on_how_many_or_how_large() -> None:
    keys, values = normal(2, 6, 7).exp(), normal(2, 6, 3, seed=1)
    matrix, z = favor.kernel(keys, values)
    assert torch.allclose(z.mean(-1), torch.ones(2).double())
    twice = favor.kernel(torch.cat([keys, keys], 1), torch.cat([values, values], 1))
    larger = favor.kernel(1000 * keys, values)
    padded = favor.kernel(*(torch.cat([t, torch.zeros_like(t)], 1) for t in (keys, values)))
    for other_matrix, other_z in (twice, larger, padded):
        assert torch.allclose(other_matrix, matrix, rtol=1e-13)
        assert torch.allclose(other_z, z, rtol=1e-13)


def test_without_a_token_the_kernel_is_zero_and_so_are_its_gradients() -> None:
    keys = torch.zeros(1, 6, 7, requires_grad=True)
    values = torch.ones(1, 6, 3, requires_grad=True)
    matrix, z = favor.kernel(keys, values)
    assert not matrix.any()
    assert not z.any()
    heard = favor.attend(torch.ones(1, 2, 7), matrix, z)
    assert not heard.any()
    heard.sum().backward()
    assert keys.grad is not None
    assert keys.grad.isfinite().all()
