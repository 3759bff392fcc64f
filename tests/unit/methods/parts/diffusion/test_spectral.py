"""Spectral blocks: orthonormal, the best there is, the same whatever signs a decomposition has; and
why a matrix's own block never learns."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from communis.methods.parts.diffusion.consensus import kernel_mode
from communis.methods.parts.diffusion.spectral import (
    Basis,
    aligned,
    captured,
    leading,
    lift,
    project,
)
from tests.unit.methods.parts.diffusion.clouds import generator


def drawn(name: str, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator(0, name))


def test_the_leading_directions_give_the_best_approximation() -> None:
    matrix = drawn("matrix", 9, 7).double()
    values = torch.linalg.svdvals(matrix)
    basis = leading(matrix, 3)
    assert basis.u.shape == (9, 3)
    assert basis.w.shape == (7, 3)
    for side in (basis.u, basis.w):
        assert torch.allclose(side.T @ side, torch.eye(3).double())
    core = project(matrix, basis)
    assert torch.allclose(core, torch.diag(values[:3]))
    rest = torch.linalg.matrix_norm(matrix - lift(core, basis), 2)
    assert float(rest) == pytest.approx(float(values[3]))
    share = float(values[:3].square().sum() / values.square().sum())
    assert captured(matrix, basis) == pytest.approx(share)


def test_a_core_lifted_and_projected_is_the_same_for_many_matrices_at_once() -> None:
    basis = leading(drawn("matrix", 9, 7), 3)
    cores = drawn("cores", 5, 3, 3)
    lifted = lift(cores, basis)
    assert lifted.shape == (5, 9, 7)
    assert torch.allclose(project(lifted, basis), cores, atol=1e-6)
    assert torch.allclose(lifted[2], lift(cores[2], basis), atol=1e-6)
    assert captured(lifted, basis) == pytest.approx(1)


def test_no_more_directions_than_there_are_and_nothing_of_nothing() -> None:
    matrix = drawn("small", 4, 3)
    basis = leading(matrix, 16)
    assert basis.u.shape == (4, 3)
    assert captured(matrix, basis) == pytest.approx(1)
    nothing = leading(torch.zeros(4, 3), 2)
    assert torch.allclose(nothing.u.T @ nothing.u, torch.eye(2))
    assert captured(torch.zeros(4, 3), basis) == 0


def test_the_dtype_is_kept_and_the_signs_are_settled() -> None:
    matrix = drawn("matrix", 9, 7)
    basis, mirrored = leading(matrix, 3), leading(-matrix, 3)
    assert basis.u.dtype is basis.w.dtype is torch.float32
    assert bool((basis.u.gather(0, basis.u.abs().argmax(0)[None]) > 0).all())
    assert torch.allclose(basis.u, mirrored.u, atol=1e-6)
    assert torch.allclose(basis.w, -mirrored.w, atol=1e-6)


# Procrustes


def flipped(basis: Basis, name: str) -> Basis:
    signs = drawn(name, basis.u.shape[1]).sign()
    return Basis(basis.u * signs, basis.w * signs)


def turned(basis: Basis, name: str) -> Basis:
    """Either side by a rotation of its own."""
    u, w = (torch.linalg.qr(drawn(name + s, *[basis.u.shape[1]] * 2))[0] for s in "uw")
    return Basis(basis.u @ u, basis.w @ w)


@pytest.mark.parametrize("change", [flipped, turned])
@pytest.mark.parametrize("name", ["one", "other", "third"])
def test_alignment_undoes_signs_and_rotations(change: object, name: str) -> None:
    assert callable(change)
    matrix = drawn("matrix", 20, 15)
    previous = leading(matrix + 0.1 * drawn("step", 20, 15), 4)
    own = leading(matrix, 4)
    expected, found = aligned(own, previous), aligned(change(own, name), previous)
    assert torch.allclose(found.u, expected.u, atol=1e-5)
    assert torch.allclose(found.w, expected.w, atol=1e-5)


def test_alignment_keeps_the_spans_and_is_as_near_as_can_be() -> None:
    previous, own = leading(drawn("last", 20, 15), 4), leading(drawn("matrix", 20, 15), 4)
    found = aligned(own, previous)
    assert torch.allclose(found.u @ found.u.T, own.u @ own.u.T, atol=1e-5)
    assert torch.allclose(found.w @ found.w.T, own.w @ own.w.T, atol=1e-5)
    nearest = (found.u - previous.u).norm()
    for name in ("a", "b", "c", "d"):
        assert nearest < (turned(found, name).u - previous.u).norm()
    same = aligned(previous, previous)
    assert torch.allclose(same.u, previous.u, atol=1e-5)


def test_bases_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="different sizes"):
        aligned(leading(drawn("m", 9, 7), 3), leading(drawn("m", 9, 7), 2))


@pytest.mark.parametrize("name", ["one", "other", "third"])
def test_signs_of_a_decomposition_do_not_reach_the_next_matrix(name: str) -> None:
    """With `kernel`, aligned or not; with a network that remembers coordinates, if aligned."""
    theta, previous = drawn("theta", 12, 10), leading(drawn("last", 12, 10), 3)
    changes = drawn("changes", 20, 12, 10)
    own = leading(theta, 3)

    def step(basis: Basis) -> Tensor:
        points = project(changes, basis).flatten(1).double()
        value = kernel_mode(points, torch.ones(20).double()).float()
        return theta + lift(value.view(3, 3), basis)

    for basis in (flipped(own, name), aligned(flipped(own, name), previous)):
        assert torch.allclose(step(basis), step(own), atol=1e-5)
    cores = [project(changes, aligned(b, previous)) for b in (own, flipped(own, name))]
    assert torch.allclose(*cores, atol=1e-5)


# What a block can learn


def missing(source: str, warmup: int, init: float, d: int = 256, r: int = 16) -> float:
    """The share (of length) of a change of rank 12 that is missing after 12 rounds. Every round the
    mean client goes half the way there, with some noise, and the server follows within the block of
    `source`: theta itself, or a momentum of the mean updates."""
    low = drawn("left", d, 12) @ drawn("right", 12, d) / d
    theta = init * drawn("theta", d, d)
    target, momentum = theta + low, torch.zeros(d, d)
    for round in range(12):
        mean = (target - theta) / 2 + 0.001 * drawn(f"noise {round}", d, d)
        block = leading(momentum if source == "momentum" and round else theta, r)
        theta = theta + (mean if round < warmup else lift(project(mean, block), block))
        momentum = 0.8 * momentum + mean
    return float((target - theta).norm() / low.norm())


def test_a_random_block_holds_next_to_nothing_of_an_update() -> None:
    update = drawn("left", 256, 12) @ drawn("right", 12, 256)
    assert captured(update, leading(drawn("theta", 256, 256), 16)) == pytest.approx(
        16**2 / 256**2, rel=0.5
    )


@pytest.mark.parametrize("init", [1.0, 0.01])
def test_the_block_of_the_matrix_itself_is_frozen(init: float) -> None:
    assert missing("theta", 0, init) > 0.98


def test_momentum_or_a_warm_up_thaw_it() -> None:
    assert missing("momentum", 0, 1.0) < 0.15
    assert missing("momentum", 3, 0.01) < 0.15
    assert missing("theta", 3, 0.01) < 0.15
