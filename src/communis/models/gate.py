"""The spectral gate: M = U diag(sigma) W^T -> U diag(g(sigma) sigma) W^T, of many matrices at once.

It is computed as M h(M^T M), with h(lambda) = g(sqrt(lambda)) taken of the small Gram matrix by its
eigenvectors, which is the same matrix. The backward pass is the Daleckii-Krein formula: with
W^T M^T G W = X and the divided differences Gamma_ij = (h_i - h_j) / (lambda_i - lambda_j),

    dM = G h(M^T M) + M W (Gamma o (X + X^T)) W^T

It stays finite where singular values are equal or zero; the gradient of an SVD does not. A soft
gate's Gamma is written without a difference that could cancel out.

Deviation: g takes singular values as shares of the largest (relative = True), without a gradient
    through the largest. UMEDA's Equation 4 takes them as they are (relative = False); its
    thresholds up to 0.85 (Table 6) make sense for shares only.
Deviation: in gradients, singular values below 1e-4 of the largest count as that much, and those on
    the two sides of a hard step as at least 1e-3 of the largest eigenvalue apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

GateKind = Literal["soft", "hard", "topr", "none"]
FLOOR = 1e-4  # of the largest: singular values below it count as this much in slopes
GAP = 1e-3  # of the largest eigenvalue: the least distance across the step of hard and topr
TINY = 1e-12  # stands in for the largest singular value of a zero matrix
_twice: ContextVar[bool] = ContextVar("twice differentiable gates", default=False)


@contextmanager
def twice_differentiable() -> Iterator[None]:
    """Gives gates in this context second derivatives, so that gradients can be differentiated.

    Gradients then go through the eigenvectors, which is slower, and infinite or NaN where singular
    values are equal. The values agree except for singular values below FLOOR.
    """
    before = _twice.set(True)
    try:
        yield
    finally:
        _twice.reset(before)


@dataclass(frozen=True)
class Gate:
    """A gate on the singular values of matrices."""

    kind: GateKind = "soft"
    relative: bool = True  # they are shares of the largest, which is treated as a constant
    tau: float = 0.05  # threshold of soft and hard
    beta: float = 0.01  # width of the soft slope
    rank: int = 16  # number of singular values that topr keeps

    def __call__(self, matrix: Tensor) -> Tensor:
        """Returns the matrices (..., m, d), each gated by its own singular values."""
        if self.kind == "none":
            return matrix
        if _twice.get():
            return matrix @ self.projector(matrix.mT @ matrix)
        gated: Tensor = _Gated.apply(matrix, self)  # type: ignore[no-untyped-call]
        return gated

    def projector(self, gram: Tensor) -> Tensor:
        """Returns h of Gram matrices (..., d, d), differentiable by autograd."""
        values, vectors = _eigen(gram)
        least = FLOOR**2 * values[..., -1:].detach()
        weights = self.weights(values.clamp_min(least.clamp_min(TINY**2)).sqrt())
        return (vectors * weights[..., None, :]) @ vectors.mT

    def weights(self, sigma: Tensor) -> Tensor:
        """Returns g of singular values (..., d) in ascending order."""
        if self.kind == "topr":
            places = torch.arange(sigma.shape[-1], 0, -1, device=sigma.device)
            return (places <= self.rank).to(sigma.dtype).expand_as(sigma)
        shares = sigma / self._unit(sigma)
        if self.kind == "hard":
            return (shares > self.tau).to(sigma.dtype)
        return torch.sigmoid((shares - self.tau) / self.beta)

    def differences(self, sigma: Tensor) -> Tensor:
        """Returns Gamma (..., d, d) of singular values in ascending order."""
        largest = sigma[..., -1:, None].clamp_min(TINY)
        if self.kind != "soft":  # the step does not move: only the directions on its two sides do
            gap = torch.maximum(_pairs(sigma.square()).abs(), GAP * largest.square())
            return _pairs(self.weights(sigma)).abs() / gap
        # s(a) - s(b) = tanh((a - b) / 2) (s(a) s(-b) + s(b) s(-a)), s being the sigmoid
        unit = self._unit(sigma)
        at = (sigma / unit - self.tau) / self.beta
        half = _pairs(at) / 2
        steepness = torch.where(half == 0, 1.0, torch.tanh(half) / half)
        mixed = torch.sigmoid(at)[..., :, None] * torch.sigmoid(-at)[..., None, :]
        sums = torch.maximum(sigma[..., :, None] + sigma[..., None, :], 2 * FLOOR * largest)
        return steepness * (mixed + mixed.mT) / (2 * self.beta * unit[..., None] * sums)

    def _unit(self, sigma: Tensor) -> Tensor:
        largest = sigma[..., -1:].detach()
        return largest.clamp_min(TINY) if self.relative else torch.ones_like(largest)


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, matrix: Tensor, gate: Gate) -> Tensor:
        values, vectors = _eigen(matrix.mT @ matrix)
        sigma = values.clamp_min(0).sqrt()
        projector = (vectors * gate.weights(sigma)[..., None, :]) @ vectors.mT
        ctx.gate = gate
        ctx.save_for_backward(matrix, sigma, vectors, projector)
        return matrix @ projector

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        if torch.is_grad_enabled():  # by create_graph=True; what is saved would count as constant
            raise RuntimeError(
                "a gradient through a spectral gate cannot be differentiated again: run the "
                "forward pass within gate.twice_differentiable()"
            )
        matrix, sigma, vectors, projector = ctx.saved_tensors
        inner = vectors.mT @ (matrix.mT @ grad) @ vectors
        inner = ctx.gate.differences(sigma) * (inner + inner.mT)
        return grad @ projector + matrix @ (vectors @ inner @ vectors.mT), None


def _eigen(gram: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ascending eigenvalues, and eigenvectors, which are NaN if the matrix contains NaN or
    Inf, so that divergence stays visible. eigh gets zeros in this case: it raises an error for such
    a matrix, and may not converge for one with single entries replaced."""
    finite = torch.isfinite(gram).all(-1, keepdim=True).all(-2, keepdim=True)
    values, vectors = torch.linalg.eigh(gram.where(finite, 0.0))
    return values, vectors.where(finite, torch.nan)


def _pairs(x: Tensor) -> Tensor:
    return x[..., :, None] - x[..., None, :]


class SpectralGate(nn.Module):
    """The gate of a layer: kernels (B, H, m, d) -> gated kernels.

    every > 1: in training, all samples share one projector per head, that of a moving average of
    their mean Gram matrix. It is computed again every `every` passes and has no gradient. The
    average is reset when training begins or ends: it is not part of a client's state.
    """

    average: Tensor
    projector: Tensor
    passes: Tensor

    def __init__(
        self, gate: Gate, heads: int, size: int, every: int = 1, keep: float = 0.95
    ) -> None:
        super().__init__()
        self.gate, self.every, self.keep = gate, every, keep
        if every > 1:
            self.register_buffer("average", torch.zeros(heads, size, size), persistent=False)
            self.register_buffer("projector", torch.zeros(heads, size, size), persistent=False)
            self.register_buffer("passes", torch.tensor(0), persistent=False)

    def train(self, mode: bool = True) -> SpectralGate:
        if self.every > 1:
            self.passes.zero_()
        return super().train(mode)

    def forward(self, kernels: Tensor) -> Tensor:
        if self.every == 1 or not self.training or self.gate.kind == "none":
            return self.gate(kernels)
        if int(self.passes) % self.every == 0:
            self._refresh(kernels.detach())
        self.passes += 1
        return kernels @ self.projector.clone()  # the backward pass may come after the next refresh

    @torch.no_grad()
    def _refresh(self, kernels: Tensor) -> None:
        gram = (kernels.mT @ kernels).mean(0)
        self.average.lerp_(gram, 1 - self.keep if self.passes else 1.0)
        self.projector.copy_(self.gate.projector(self.average))


def effective_rank(matrices: Tensor) -> Tensor:
    """Returns exp of the entropy of the singular values' shares: r for r equal singular values, 0
    if all are zero."""
    sigma: Tensor = torch.linalg.svdvals(matrices)
    total = sigma.sum(-1, keepdim=True)
    shares = sigma / torch.where(total > 0, total, 1.0)
    entropy: Tensor = torch.special.entr(shares).sum(-1)
    return entropy.exp() * (sigma[..., 0] > 0)


@contextmanager
def gated_ranks(model: nn.Module) -> Iterator[list[Tensor]]:
    """Records the effective ranks (B, H) of the gated kernels of every forward pass, by layer."""
    ranks: list[Tensor] = []
    gates = [module for module in model.modules() if isinstance(module, SpectralGate)]
    hooks = [
        gate.register_forward_hook(lambda _, __, out: ranks.append(effective_rank(out.detach())))
        for gate in gates
    ]
    try:
        yield ranks
    finally:
        for hook in hooks:
            hook.remove()
