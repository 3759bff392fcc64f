"""A transformer on tokens whose attention is a kernel of fixed size, gated by its spectrum: SGLT of
UMEDA, Section 3.1.

M = phi(K)^T V has the same shape however many tokens there are, so clients with coarse and dense
sensors share every parameter, the operator theta_M that is added to M included.

Deviation: theta_M is a parameter of its own, added to every M before the gate; Equations 3 to 5
    then gate the sum. The paper has a persistent theta_M with an SVD and updates, but says neither
    what it is nor where it enters; M is an activation.
Deviation: M is (m, d / heads) per head and gated per head; Equation 2 has one of (d, d). The
    columns of all heads side by side are theta_M (m, d).
Deviation: the soft gate is at work in training and in prediction; the paper speaks of training.
Deviation: what FAVOR+ and the gate do differently is in favor.py and gate.py.
Deviation: pre-norm layers, feed-forward parts four times as wide, two layers and the mean over
    tokens are not in the paper, nor is how sensors become tokens (models/tokens.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor, nn

from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.models import favor
from communis.models.fusion import Fusion
from communis.models.gate import Gate, GateKind, SpectralGate

OperatorKind = Literal["none", "learned", "ema", "factored"]


@dataclass(frozen=True)
class Sglt:
    """Settings of transformers on tokens. Models without a gated kernel use only layers, heads and
    knn."""

    gate: GateKind = "soft"  # how singular values are gated: by a sigmoid, a step, the largest few
    relative: bool = True  # singular values are gated as shares of the largest
    tau: float = 0.05  # threshold of the gate
    beta: float = 0.01  # width of the soft gate's slope
    rank: int = 16  # number of singular values that topr keeps
    gate_every: int = 1  # training passes that share one projector; 1: one projector per sample
    layers: int = 2  # number of layers
    heads: int = 4  # attention heads per layer; they must divide the embedding
    features: int = 0  # random features per head; 0: the embedding size
    operator: OperatorKind = "learned"  # shared operator theta_M: trained, a moving average (ema),
    # or a small trained factor between frozen matrices (factored)
    operator_rank: int = 16  # rank of a factored operator
    operator_std: float = 0.01  # standard deviation of theta_M at initialisation
    ema: float = 0.95  # decay of the moving averages of theta_M and of the kernels of gate_every
    seed: int = 0  # seed of the random features and of the frozen matrices of a factored operator;
    # the same for all clients
    knn: int = 8  # neighbours of a token in a graph encoder

    def __post_init__(self) -> None:
        for name, kinds in {"gate": GateKind, "operator": OperatorKind}.items():
            if getattr(self, name) not in get_args(kinds):
                listed = ", ".join(get_args(kinds))
                raise CommunisError(f"no {name} {getattr(self, name)!r}; there are {listed}")
        for name in ("rank", "gate_every", "layers", "heads", "operator_rank", "knn"):
            if getattr(self, name) < 1:
                raise CommunisError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("features", "seed", "operator_std", "tau"):
            if not getattr(self, name) >= 0:
                raise CommunisError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.relative and self.tau >= 1:
            raise CommunisError(
                f"tau = {self.tau} would remove even the largest singular value; with relative = "
                "true, tau is a share of it, below 1"
            )
        if not self.beta > 0:
            raise CommunisError(f'beta must be positive, got {self.beta}; gate = "hard" has none')
        if not 0 <= self.ema < 1:
            raise CommunisError(f"ema must be a share from 0 to below 1, got {self.ema}")


class TokenLayer(nn.Module):
    """Pre-norm transformer layer: tokens (B, L, d) and their mask (B, L) -> (B, L, d)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.ffn = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.mixed(self.norm1(x), mask)
        wider: Tensor = self.ffn(self.norm2(x))
        return x + wider

    def mixed(self, x: Tensor, mask: Tensor) -> Tensor:
        """Returns the output of attention; masked tokens do not contribute."""
        raise NotImplementedError


def dividing(heads: int, width: int) -> int:
    """Returns the number of heads, or raises an error if it does not divide the embedding."""
    if width % heads:
        raise CommunisError(
            f"sglt.heads = {heads} does not divide an embedding of {width}: choose a number that "
            "divides it"
        )
    return heads


class SgltLayer(TokenLayer):
    """Linear attention through one gated kernel per head. number: number of the layer, from 0."""

    directions: (
        Tensor  # of the random features, for all heads; not part of the state, never redrawn
    )

    def __init__(self, width: int, settings: Sglt, number: int = 0) -> None:
        super().__init__(width)
        self.heads = dividing(settings.heads, width)
        size, count = width // self.heads, settings.features or width
        drawn = favor.directions(size, count, _frozen("features", settings.seed, number))
        self.register_buffer("directions", drawn, persistent=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width)
        self.operator = _operator(count, width, settings, number)
        gate = Gate(settings.gate, settings.relative, settings.tau, settings.beta, settings.rank)
        self.gate = SpectralGate(gate, self.heads, size, settings.gate_every, settings.ema)

    def mixed(self, x: Tensor, mask: Tensor) -> Tensor:
        size = x.shape[2] // self.heads
        parts = self.qkv(x).view(*x.shape[:2], 3, self.heads, size)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)  # (B, H, L, d / H)
        queries, keys = (
            favor.features(favor.normalised(part), self.directions) for part in (queries, keys)
        )
        keys = keys.masked_fill(~mask[:, None, :, None], 0.0)
        matrix, z = favor.kernel(keys, values)
        if self.operator is not None:
            matrix = self.operator(matrix, mask.any(1))
        attended = favor.attend(queries, self.gate(matrix), z)
        mixed: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return mixed


class Operator(nn.Module):
    """theta_M: a matrix (m, d) that is added to every kernel; each head has its own columns.
    Clients share it, and it is trained like any other weight."""

    def __init__(self, rows: int, columns: int, settings: Sglt) -> None:
        super().__init__()
        self.heads, self.std = settings.heads, settings.operator_std
        self.theta = nn.Parameter(torch.empty(rows, columns))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.theta, std=self.std)

    def matrix(self) -> Tensor:
        """theta_M (m, d)."""
        return self.theta

    def forward(self, kernels: Tensor, seen: Tensor) -> Tensor:
        """Adds theta_M to the kernels (B, H, m, d / H). seen (B,): which samples have any token."""
        matrix = self.matrix()
        return kernels + matrix.view(matrix.shape[0], self.heads, -1).transpose(0, 1)


class MovingOperator(Operator):
    """theta_M as a moving average of the kernels in training; it has no gradient."""

    def __init__(self, rows: int, columns: int, settings: Sglt) -> None:
        super().__init__(rows, columns, settings)
        self.keep = settings.ema

    def matrix(self) -> Tensor:
        return self.theta.detach()

    def forward(self, kernels: Tensor, seen: Tensor) -> Tensor:
        joined = super().forward(kernels, seen)
        if self.training and self.theta.requires_grad and bool(seen.any()):  # frozen ones stay
            mean = kernels.detach()[seen].mean(0)  # (H, m, d / H)
            with torch.no_grad():
                self.theta.lerp_(mean.transpose(0, 1).flatten(1), 1 - self.keep)
        return joined


class FactoredOperator(Operator):
    """theta_M = theta_0 + U X W^T, with frozen U, W (orthonormal) and theta_0 that all clients draw
    from one seed. Only X (r, r) is trained and sent."""

    base: Tensor
    u: Tensor
    w: Tensor

    def __init__(self, features: int, width: int, settings: Sglt, number: int) -> None:
        rank = settings.operator_rank
        super().__init__(rank, rank, settings)
        if rank > min(features, width):
            raise CommunisError(
                f"operator_rank = {rank} exceeds the rank of theta_M of {features} x {width}: "
                f"choose at most {min(features, width)}"
            )
        source = _frozen("operator", settings.seed, number)
        shapes = {"base": (features, width), "u": (features, rank), "w": (width, rank)}
        for name, shape in shapes.items():
            normal = torch.randn(shape, generator=source, dtype=torch.float64)
            drawn = self.std * normal if name == "base" else favor.orthonormal(normal)
            self.register_buffer(name, drawn.to(self.theta.dtype), persistent=False)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.theta)

    def matrix(self) -> Tensor:
        return self.base + self.u @ self.theta @ self.w.mT


def _operator(features: int, width: int, settings: Sglt, number: int) -> Operator | None:
    if settings.operator == "none":
        return None
    if settings.operator == "factored":
        return FactoredOperator(features, width, settings, number)
    if settings.operator == "ema":
        return MovingOperator(features, width, settings)
    return Operator(features, width, settings)


def _frozen(name: str, seed: int, layer: int) -> torch.Generator:
    """Returns the generator of frozen values, which is the same for all clients."""
    return torch.Generator().manual_seed(Streams(seed).number(f"frozen/{name}", layer))


class TokenFusion(Fusion):
    """Passes the tokens of all present sensors through the layers as one sequence. The embedding is
    their mean; that of a sample without tokens is zero.

    make: returns the layer of a number, from 0: forward(x (B, L, d), mask (B, L) bool) -> (B, L, d)
    """

    open_to_any = True  # no parameter belongs to a modality

    def __init__(
        self,
        features: Mapping[str, int],
        width: int,
        make: Callable[[int], nn.Module],
        layers: int,
    ) -> None:
        super().__init__()
        odd = {m: size for m, size in features.items() if size % width}
        if odd:
            raise ValueError(f"tokens of {width} numbers cannot make up features of sizes {odd}")
        self.features, self.make, self.layers = width, make, layers
        self.shared = nn.ModuleDict(
            {
                "layers": nn.ModuleList([make(i) for i in range(layers)]),
                "norm": nn.LayerNorm(width),
            }
        )

    def fresh(self, features: Mapping[str, int]) -> Fusion:
        return TokenFusion(features, self.features, self.make, self.layers)

    def forward(
        self, features: Mapping[str, Tensor], present: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        width = self.features
        tokens = {m: h.reshape(h.shape[0], h.shape[1] // width, width) for m, h in features.items()}
        # Padding of point clouds arrives as tokens of zeros (models/tokens.py).
        mask = torch.cat([present[m][:, None] & (t != 0).any(2) for m, t in tokens.items()], 1)
        x = torch.cat(list(tokens.values()), 1).masked_fill(~mask[..., None], 0.0)
        for layer in cast(nn.ModuleList, self.shared["layers"]):
            x = layer(x, mask)
        seen = self.shared["norm"](x).masked_fill(~mask[..., None], 0.0)
        embedding = seen.sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
        return embedding, embedding
