"""The operators theta_M of all layers: their spectral blocks, and the update of a client as one
point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from communis.core.contract import Path
from communis.core.errors import CommunisError
from communis.core.state import State
from communis.methods.parts.diffusion.spectral import Basis, aligned, leading, lift, project

CORE = ".core"  # suffix of the path of an operator if only its core is sent


def is_operator(path: Path) -> bool:
    """Returns whether the path is the operator theta_M of a layer (models/sglt.py)."""
    return ".operator.theta" in path


def bases(
    matrices: State, rank: int, previous: tuple[State, State] = (State(), State())
) -> tuple[State, State]:
    """Returns U and W of every matrix, rotated towards the previous bases. They are unit matrices
    if the rank is not smaller than the matrix. A matrix of zeros keeps its previous basis."""
    u = {}
    w = {}
    for path, matrix in matrices.items():
        last = None
        if path in previous[0]:
            last = Basis(previous[0][path], previous[1][path])
        basis = _basis(matrix, rank, last)
        u[path] = basis.u
        w[path] = basis.w
    return State(u), State(w)


def _basis(matrix: Tensor, rank: int, last: Basis | None) -> Basis:
    if rank >= max(matrix.shape):
        rows, columns = matrix.shape
        return Basis(torch.eye(rows), torch.eye(columns))
    if last is None:
        return leading(matrix, rank)
    if not bool(matrix.any()):
        return last
    return aligned(leading(matrix, rank), last)


def cores(change: Mapping[Path, Tensor], u: State, w: State) -> State:
    """Returns the cores (r, r) of a change, its part in the blocks."""
    return State({p: project(t, Basis(u[p], w[p])) for p, t in change.items() if p in u})


def lifted(core: Mapping[Path, Tensor], u: State, w: State) -> State:
    """Returns the change of full size with these cores, zero outside of the blocks."""
    return State({p: lift(t, Basis(u[p], w[p])) for p, t in core.items()})


def point(core: Mapping[Path, Tensor]) -> Tensor:
    """Returns the cores of all layers as one vector (D,), in row-major order."""
    return torch.cat([t.flatten() for t in core.values()])


def unpacked(value: Tensor, like: Mapping[Path, Tensor]) -> State:
    """Reverses `point`: returns the cores of all layers, with the shapes of `like`."""
    pieces = torch.split(value, [t.numel() for t in like.values()])
    return State({p: x.view_as(t) for (p, t), x in zip(like.items(), pieces, strict=True)})


def mean(changes: Sequence[State], weights: Tensor) -> State:
    """Returns the weighted mean of States with the same paths."""
    shares = (weights / weights.sum()).to(torch.float32)
    means = {}
    for path in changes[0]:
        stacked = torch.stack([change[path] for change in changes])
        means[path] = torch.tensordot(shares, stacked, 1)
    return State(means)


def captured(cores: Sequence[State], changes: Sequence[State]) -> float:
    """Returns the share of the changes' energy that their cores have, 0 if there is no energy."""
    energy = _energy(changes)
    return _energy(cores) / energy if energy else 0.0


def _energy(states: Sequence[State]) -> float:
    return sum(float(t.double().square().sum()) for state in states for t in state.values())


def towards(old: State, new: State, eta: float) -> State:
    """Returns old + eta (new - old), exactly `new` for eta = 1. Paths that `new` lacks are
    unchanged."""
    return old | {path: torch.lerp(old[path], t, eta) for path, t in new.items()}


def named(core: State) -> dict[str, Tensor]:
    """Returns cores under separate names, as they are not values of theta_M."""
    return {path + CORE: t for path, t in core.items()}


def unnamed(sent: Mapping[str, Tensor]) -> State:
    """Reverses `named`."""
    return State({path.removesuffix(CORE): t for path, t in sent.items()})


def check(sent: Mapping[str, Tensor], shapes: Mapping[Path, tuple[int, ...]], rank: int) -> None:
    """Refuses a message that does not hold all operators of a client, or with a rank, the cores of
    all operators."""
    expected = dict(shapes)
    if rank:
        expected = {p + CORE: core_shape(shape, rank) for p, shape in shapes.items()}
    sent_shapes = {path: tuple(t.shape) for path, t in sent.items()}
    if sent_shapes != expected:
        raise CommunisError(f"operator holds {sent_shapes}, expected {expected}")
    for path, t in sent.items():
        if t.dtype is not torch.float32:
            raise CommunisError(f"operator/{path} is {t.dtype}, expected torch.float32")


def core_shape(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Returns the shape of the core of a matrix of this shape; see `bases`."""
    if rank >= max(shape):
        return shape
    r = min(rank, *shape)
    return (r, r)


def effective_rank(matrices: Mapping[Path, Tensor]) -> float:
    """Returns exp of the entropy of the singular values' shares, the mean over matrices, or NaN
    without matrices."""
    ranks = []
    for matrix in matrices.values():
        values = torch.linalg.svdvals(matrix.double())
        shares = values / values.sum().clamp_min(1e-300)
        ranks.append(float(torch.special.entr(shares).sum().exp()))
    return sum(ranks) / len(ranks) if ranks else math.nan
