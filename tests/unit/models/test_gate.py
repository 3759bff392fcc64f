"""The spectral gate: that it is the truncated or weighted SVD, and that its gradients are right and
finite where those of an SVD are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from communis.models.gate import (
    Gate,
    GateKind,
    SpectralGate,
    effective_rank,
    gated_ranks,
    twice_differentiable,
)
from tests.unit.small import random

SIGMA = (1.3, 0.9, 0.5, 0.3, 0.11, 0.02)
ROUNDING = 1e-12  # products of small matrices of order 1: thousands of times double precision's
# step, for libraries and processors add up in different orders
ABSOLUTE: dict[str, Any] = {"relative": False, "tau": 0.25, "beta": 0.1, "rank": 3}


def matrix(*sigma: float, rows: int = 9, columns: int = 0, seed: int = 0) -> Tensor:
    """A matrix with these singular values, as many columns as values unless told, float64."""
    columns = columns or len(sigma)
    u, _ = torch.linalg.qr(random(rows, len(sigma), seed=seed, dtype=torch.float64))
    w, _ = torch.linalg.qr(random(columns, len(sigma), seed=seed + 1, dtype=torch.float64))
    return (u * torch.tensor(sigma, dtype=torch.float64)) @ w.mT


def norm(x: Tensor) -> float:
    return float(torch.linalg.matrix_norm(x, 2))


def by_svd(x: Tensor, gate: Gate) -> Tensor:
    u, sigma, w = torch.linalg.svd(x, full_matrices=False)
    weights = gate.weights(sigma.flip(-1)).flip(-1)
    return (u * (weights * sigma)[..., None, :]) @ w


def gradient(gate: Gate, x: Tensor, out: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (found,) = torch.autograd.grad(gate(x), x, out)
    return found


@pytest.mark.parametrize(
    "gate",
    [
        Gate("hard", relative=False, tau=0.4),
        Gate("hard", tau=0.3),
        Gate("topr", rank=3),
    ],
)
def test_a_step_is_the_best_approximation_of_its_rank(gate: Gate) -> None:
    x = matrix(*SIGMA)
    gated = gate(x)
    assert norm(x - gated) == pytest.approx(SIGMA[3], abs=1e-12)
    assert int(torch.linalg.matrix_rank(gated, rtol=1e-10)) == 3
    assert torch.linalg.svdvals(gated)[:3].tolist() == pytest.approx(SIGMA[:3], abs=1e-12)


@pytest.mark.parametrize("rank", [6, 100])
def test_topr_keeps_all_if_there_are_no_more(rank: int) -> None:
    x = matrix(*SIGMA)
    assert torch.allclose(Gate("topr", rank=rank)(x), x, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("unit", [1.0, SIGMA[0]])
def test_a_soft_gate_errs_by_the_most_that_it_takes_away(unit: float) -> None:
    x, sigma = matrix(*SIGMA), torch.tensor(SIGMA, dtype=torch.float64)
    g = torch.sigmoid((sigma / unit - 0.2) / 0.1)
    gated = Gate("soft", relative=unit != 1, tau=0.2, beta=0.1)(x)
    assert norm(x - gated) == pytest.approx(float(((1 - g) * sigma).max()), abs=1e-12)
    assert torch.linalg.svdvals(gated).tolist() == pytest.approx((g * sigma).tolist(), abs=1e-12)


@pytest.mark.parametrize("kind", ["soft", "hard", "topr"])
@pytest.mark.parametrize("shape", [(2, 3, 9, 5), (4, 3, 7)])
def test_the_gram_form_is_the_svd_form(kind: GateKind, shape: tuple[int, ...]) -> None:
    gate, x = Gate(kind, tau=0.5, rank=2), random(*shape, dtype=torch.float64)
    assert torch.allclose(gate(x), by_svd(x, gate), rtol=0, atol=1e-12)
    with twice_differentiable():
        assert torch.allclose(gate(x), by_svd(x, gate), rtol=0, atol=1e-4)
    assert gate(x.float()).dtype == torch.float32


def test_no_gate_hands_on_the_very_matrix() -> None:
    x = matrix(*SIGMA)
    assert Gate("none")(x) is x


@pytest.mark.parametrize("kind", ["soft", "hard", "topr"])
@pytest.mark.parametrize("rows", [6, 9, 4], ids=["square", "tall", "flat"])
def test_gradients(kind: GateKind, rows: int) -> None:
    x = matrix(1.3, 0.9, 0.5, 0.11, rows=rows, columns=6)
    assert gradcheck(Gate(kind, **ABSOLUTE), x.requires_grad_())


@pytest.mark.parametrize(
    "sigma",
    [(0.3,) * 4, (0.9, 0.3, 0.3, 0.2), (0.7, 0.7, 0.2, 0.2), (0.3, 0.3 * (1 + 1e-9), 0.1, 0.0)],
)
def test_gradients_where_singular_values_are_equal(sigma: tuple[float, ...]) -> None:
    assert gradcheck(Gate("soft", **ABSOLUTE), matrix(*sigma).requires_grad_())


def test_gradients_of_a_batch_are_those_of_its_matrices() -> None:
    x, out = random(2, 3, 8, 4, dtype=torch.float64), random(2, 3, 8, 4, seed=1).double()
    together = gradient(Gate(tau=0.6, beta=0.2), x, out)
    for i, j in ((0, 0), (1, 2)):
        alone = gradient(Gate(tau=0.6, beta=0.2), x[i, j], out[i, j])
        assert torch.allclose(together[i, j], alone, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_a_relative_gate_is_an_absolute_one_with_the_largest_as_unit(kind: GateKind) -> None:
    x, out = matrix(*SIGMA), random(9, 6, dtype=torch.float64)
    relative = Gate(kind, tau=0.3, beta=0.1)
    absolute = Gate(kind, relative=False, tau=0.3 * SIGMA[0], beta=0.1 * SIGMA[0])
    assert torch.allclose(relative(x), absolute(x), rtol=0, atol=ROUNDING)
    found, expected = gradient(relative, x, out), gradient(absolute, x, out)
    assert torch.allclose(found, expected, rtol=0, atol=1e-12)
    assert torch.allclose(relative(1000 * x), 1000 * relative(x), rtol=1e-10, atol=0)


@pytest.mark.parametrize("kind", ["soft", "hard", "topr"])
@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_for_zero_and_identity(
    kind: GateKind, relative: bool, dtype: torch.dtype
) -> None:
    gate, out = Gate(kind, relative, rank=2), random(6, 6, dtype=dtype)
    for x in (torch.zeros(6, 6, dtype=dtype), torch.eye(6, dtype=dtype), 1e-30 * out):
        assert gate(x).isfinite().all()
        assert gradient(gate, x, out).isfinite().all()
    if kind == "soft":  # g(0) and, for equal singular values, g(1) plus its slope along them
        zero = gradient(gate, torch.zeros(6, 6, dtype=dtype), out)
        assert torch.allclose(zero, out * torch.sigmoid(torch.tensor(-5.0)), atol=1e-4)


def test_a_step_has_bounded_gradients_however_near_the_values_on_its_sides() -> None:
    x, out = matrix(1.0, 0.5 + 1e-9, 0.5), random(9, 3, dtype=torch.float64)
    assert 1 < norm(gradient(Gate("topr", rank=2), x, out)) / norm(out) < 1e3


def test_gradients_of_float32_agree_with_float64() -> None:
    x = torch.stack([matrix(*SIGMA, rows=32, seed=i) for i in range(20)])
    out = random(*x.shape, dtype=torch.float64)
    exact, found = gradient(Gate(), x, out), gradient(Gate(), x.float(), out.float())
    assert float((found - exact).norm() / exact.norm()) < 1e-4


def test_second_derivatives_are_right_within_and_refused_without() -> None:
    gate, x = Gate("soft", **ABSOLUTE), matrix(1.3, 0.9, 0.5, 0.2, rows=5).requires_grad_()
    with twice_differentiable():
        assert gradcheck(gate, x)
        assert gradgradcheck(gate, x)
        plain = gate(x)
    assert torch.allclose(plain, gate(x), rtol=0, atol=ROUNDING)
    with pytest.raises(RuntimeError, match="twice_differentiable"):
        torch.autograd.grad(gate(x).sum(), x, create_graph=True)


def test_what_is_not_a_number_stays_with_its_matrix() -> None:
    x = random(3, 6, 4)
    x[1, 2, 2] = torch.nan
    assert Gate()(x).isnan().any((1, 2)).tolist() == [False, True, False]


def remembering(every: int) -> tuple[SpectralGate, Gate]:
    gate = Gate(tau=0.5, beta=0.1)
    return SpectralGate(gate, heads=2, size=4, every=every, keep=0.75).double(), gate


def kernels(seed: int) -> Tensor:
    return random(5, 2, 8, 4, seed=seed, dtype=torch.float64)


def mean_gram(x: Tensor) -> Tensor:
    return (x.mT @ x).mean(0)


def test_a_projector_serves_for_several_passes() -> None:
    module, gate = remembering(2)
    a, b, c = kernels(0), kernels(1), kernels(2)
    first = gate.projector(mean_gram(a))
    assert torch.allclose(module(a), a @ first)
    assert torch.allclose(module(b), b @ first)
    later = gate.projector(0.75 * mean_gram(a) + 0.25 * mean_gram(c))
    assert torch.allclose(module(c), c @ later)
    assert module.state_dict() == {}


def test_a_shared_projector_has_no_gradient_and_may_be_renewed_before_the_backward_pass() -> None:
    module, gate = remembering(2)
    x = kernels(0)[:1].clone().requires_grad_()  # one sample: the product may then share memory
    module(x).sum().backward()
    once = torch.ones_like(x) @ gate.projector(mean_gram(x.detach()))
    assert x.grad is not None
    assert torch.allclose(x.grad, once)
    outputs = [module(x) for _ in range(3)]
    sum(out.sum() for out in outputs).backward()  # type: ignore[union-attr]


def test_a_gate_forgets_where_training_begins_or_ends() -> None:
    module, gate = remembering(3)
    module(kernels(0))
    module.train()
    assert torch.allclose(module(kernels(1)), kernels(1) @ gate.projector(mean_gram(kernels(1))))
    assert torch.equal(module.eval()(kernels(2)), gate(kernels(2)))


def test_effective_rank() -> None:
    found = effective_rank(torch.stack([torch.eye(5), torch.zeros(5, 5), torch.ones(5, 5)]))
    assert found.tolist() == pytest.approx([5, 0, 1], abs=1e-4)
    for scale in (1.0, 1e-20, 1e20):
        assert float(effective_rank(scale * matrix(2.0, 2.0, 2.0, 0.0))) == pytest.approx(3)


def test_ranks_are_read_while_they_are_watched() -> None:
    module = SpectralGate(Gate("topr", rank=1), 2, 4)
    with gated_ranks(torch.nn.Sequential(module, module)) as ranks:
        module(random(5, 2, 8, 4))
    module(random(5, 2, 8, 4))
    assert len(ranks) == 1
    assert torch.allclose(ranks[0], torch.ones(5, 2), atol=1e-4)


def wild(*shape: int, seed: int) -> Tensor:
    """Numbers between 1e-10 and 1e30, as in a model that diverges."""
    size = random(*shape, seed=seed + 1000).sigmoid()
    return random(*shape, seed=seed) * 10 ** (40 * size - 10)


@pytest.mark.parametrize("kind", ["soft", "hard", "topr"])
def test_what_overflows_becomes_nan_and_the_rest_is_gated(kind: GateKind) -> None:
    """eigh may not converge on a matrix of which single entries were replaced, and whether it does
    depends on the processor."""
    gate = Gate(kind, rank=3)
    for seed in range(100):
        x = torch.stack([wild(20, 17, seed=seed), random(20, 17, seed=seed)])
        with torch.no_grad():
            found = gate(x)
        overflows = not bool(torch.isfinite(x[0].mT @ x[0]).all())
        assert bool(found[0].isnan().any()) == overflows
        assert torch.isfinite(found[1]).all()
