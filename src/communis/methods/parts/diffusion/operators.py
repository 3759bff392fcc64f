"""The operators theta_M of all layers taken together: their spectral blocks, and every client's
update as one point."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from communis.core.contract import Path
from communis.core.errors import CommunisError
from communis.core.state import State
from communis.methods.parts.diffusion.spectral import Basis, aligned, leading, lift, project

CORE = ".core"  # ends the path of an operator of which the core alone is sent


def is_operator(path: Path) -> bool:
    """Whether theta_M of a layer is there (models/sglt.py)."""
    return ".operator.theta" in path


def bases(
    matrices: State, rank: int, previous: tuple[State, State] = (State(), State())
) -> tuple[State, State]:
    """U and W of every matrix, turned towards the previous ones; unit vectors where the rank leaves
    nothing out. A matrix of zeros has none of its own and keeps them."""
    found: dict[Path, Basis] = {}
    for path, matrix in matrices.items():
        last = Basis(previous[0][path], previous[1][path]) if path in previous[0] else None
        if rank >= max(matrix.shape):
            found[path] = Basis(*(torch.eye(n) for n in matrix.shape))
        elif last is not None and not bool(matrix.any()):
            found[path] = last
        else:
            own = leading(matrix, rank)
            found[path] = own if last is None else aligned(own, last)
    return tuple(State({p: getattr(b, side) for p, b in found.items()}) for side in "uw")  # type: ignore[return-value]


def cores(change: Mapping[Path, Tensor], u: State, w: State) -> State:
    """What of a change lies in the blocks, (r, r) each."""
    return State({p: project(t, Basis(u[p], w[p])) for p, t in change.items() if p in u})


def lifted(core: Mapping[Path, Tensor], u: State, w: State) -> State:
    """The change of full size that has these cores and nothing beside them."""
    return State({p: lift(t, Basis(u[p], w[p])) for p, t in core.items()})


def point(core: Mapping[Path, Tensor]) -> Tensor:
    """(D,): the cores of all layers behind each other, rows first."""
    return torch.cat([t.flatten() for t in core.values()])


def unpacked(value: Tensor, like: Mapping[Path, Tensor]) -> State:
    """The reverse of `point`."""
    pieces = torch.split(value, [t.numel() for t in like.values()])
    return State({p: x.view_as(t) for (p, t), x in zip(like.items(), pieces, strict=True)})


def mean(changes: Sequence[State], weights: Tensor) -> State:
    """Weighted, of States with the same paths."""
    share = (weights / weights.sum()).to(torch.float32)
    return State(
        {p: torch.tensordot(share, torch.stack([c[p] for c in changes]), 1) for p in changes[0]}
    )


def captured(cores: Sequence[State], changes: Sequence[State]) -> float:
    """The share of the energy of changes that their cores hold; 0 if there is none."""
    inside, whole = (
        sum(float(t.double().square().sum()) for one in several for t in one.values())
        for several in (cores, changes)
    )
    return inside / whole if whole else 0.0


def towards(old: State, new: State, eta: float) -> State:
    """old + eta (new - old), exactly `new` for eta = 1; what is not new stays."""
    return old | {path: torch.lerp(old[path], t, eta) for path, t in new.items()}


def named(core: State) -> dict[str, Tensor]:
    """Cores under names of their own: they are no values of theta_M."""
    return {path + CORE: t for path, t in core.items()}


def unnamed(sent: Mapping[str, Tensor]) -> State:
    """The reverse of `named`."""
    return State({path.removesuffix(CORE): t for path, t in sent.items()})


def check(sent: Mapping[str, Tensor], shapes: Mapping[Path, tuple[int, ...]], rank: int) -> None:
    """Refuses what a client cannot have sent: its operators, or with a rank their cores."""
    expected = dict(shapes)
    if rank:
        expected = {p + CORE: core_shape(shape, rank) for p, shape in shapes.items()}
    found = {path: tuple(t.shape) for path, t in sent.items()}
    if found != expected:
        raise CommunisError(f"operator holds {found}, expected {expected}")
    wrong = [path for path, t in sent.items() if t.dtype is not torch.float32]
    if wrong:
        raise CommunisError(f"operator/{wrong[0]} is {sent[wrong[0]].dtype}, expected float32")


def core_shape(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Of a matrix of this shape; see `bases`."""
    return shape if rank >= max(shape) else (min(rank, *shape),) * 2


def effective_rank(matrices: Mapping[Path, Tensor]) -> float:
    """exp of the entropy of the singular values' shares, mean over matrices; NaN without any."""
    found = []
    for matrix in matrices.values():
        values = torch.linalg.svdvals(matrix.double())
        share = values / values.sum().clamp_min(1e-300)
        found.append(float(torch.special.entr(share).sum().exp()))
    return sum(found) / len(found) if found else math.nan
