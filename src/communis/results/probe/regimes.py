"""What a server sees of a client's gradient under every way of protecting it.

"operator" is theta_M, the block that the mechanism of `privacy.mode = "paper"` covers; "the rest"
is everything else. All gradients are scaled to length C first, the longest that clipping permits:
there noise protects least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from communis.core.contract import Model, Path
from communis.exchange.privacy.guard import Block, Guard, guard_of
from communis.exchange.privacy.settings import PrivacyConfig
from communis.methods.parts.diffusion.operators import is_operator
from communis.methods.parts.diffusion.spectral import leading

Gradient = Mapping[Path, Tensor]
See = Callable[[Gradient, np.random.Generator], dict[Path, Tensor]]
KAPPA = 4.0  # the paper's noise outside of its subspace, as a multiple of that inside
SHARE = 4  # the subspace has a quarter of theta_M's directions, but no more than
RANK = 16


@dataclass(frozen=True)
class Regime:
    name: str
    about: str
    see: See  # the part of the gradient that the attacker uses
    noised: bool  # whether that part is noised: then the signs of the last bias prove no label


def regimes(model: Model, epsilon: float, delta: float = 1e-5) -> list[Regime]:
    """The regimes that apply to a model: without theta_M only its whole gradient can be protected.
    epsilon: of the one message, as each mechanism counts it."""
    theta = {path: p.detach() for path, p in model.by_path[0].items() if is_operator(path)}
    settings = PrivacyConfig(mode="local", epsilon=epsilon, delta=delta)
    local = guard_of(settings, ["all"], 1, 1.0)
    assert local is not None
    known = [
        Regime("raw", "everything in clear", lambda g, draw: _scaled(g), False),
        Regime("local", "everything clipped and noised", _guarded(local, {}), True),
    ]
    if not theta:
        return known
    basis = {p: leading(t, max(1, min(RANK, min(t.shape) // SHARE))).u for p, t in theta.items()}
    paper = PrivacyConfig(mode="paper", epsilon=epsilon, delta=delta, kappa=KAPPA)
    anisotropic = guard_of(paper, ["all"], 1, 1.0)
    assert anisotropic is not None
    sigma = anisotropic.blocks["all"].sigma
    isotropic, alike = (Guard({"all": Block(1.0, s)}) for s in (sigma, sigma * _power(basis)))

    def rest(gradient: Gradient, draw: np.random.Generator) -> dict[Path, Tensor]:
        return {path: t for path, t in gradient.items() if path not in theta}

    def alone(see: See) -> See:
        return lambda g, draw: see({path: g[path] for path in theta}, draw)

    paper_seen = Regime("paper", "theta_M by the paper's mechanism, the rest in clear", rest, False)
    return [
        known[0],
        paper_seen,
        known[1],
        Regime("theta_M raw", "theta_M alone, in clear", alone(known[0].see), False),
        Regime("theta_M isotropic", "theta_M alone, noised", alone(_guarded(isotropic, {})), True),
        Regime(
            "theta_M paper",
            "theta_M alone, by the paper's mechanism",
            alone(_guarded(anisotropic, basis)),
            True,
        ),
        Regime(
            "theta_M equal power",
            "theta_M alone, as much noise in all directions",
            alone(_guarded(alike, {})),
            True,
        ),
    ]


def _guarded(guard: Guard, basis: Mapping[Path, Tensor]) -> See:
    def see(gradient: Gradient, draw: np.random.Generator) -> dict[Path, Tensor]:
        message = {f"all/{path}": t for path, t in _scaled(gradient).items()}
        sent, _ = guard.protect(message, {}, basis, 1, draw)
        return {key.partition("/")[2]: t for key, t in sent.items()}

    return see


def _scaled(gradient: Gradient, length: float = 1.0) -> dict[Path, Tensor]:
    total = math.sqrt(sum(float(t.double().square().sum()) for t in gradient.values()))
    return {path: t * (length / max(total, 1e-30)) for path, t in gradient.items()}


def _power(basis: Mapping[Path, Tensor]) -> float:
    """The factor by which isotropic noise must be larger to have the power of the paper's."""
    rows = sum(len(u) for u in basis.values())
    inside = sum(u.shape[1] for u in basis.values())
    return math.sqrt((inside + KAPPA**2 * (rows - inside)) / rows)
