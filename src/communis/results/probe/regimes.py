"""What a server gets to see of a client's gradient, under every way of protecting it.

"operator" is theta_M, the block that UMEDA's mechanism covers; "the rest" is everything else. All
gradients are brought to length C first, the longest that clipping lets through: it is where noise
protects least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from communis.core.contract import Model, Path
from communis.exchange.privacy.guard import Block, Guard
from communis.exchange.privacy.settings import PrivacyConfig
from communis.methods.parts.diffusion.operators import is_operator
from communis.methods.parts.diffusion.spectral import leading

Gradient = Mapping[Path, Tensor]
See = Callable[[Gradient, np.random.Generator], dict[Path, Tensor]]
KAPPA = 4.0  # UMEDA's noise outside of its subspace, as a multiple of that inside
SHARE = 4  # the subspace has a quarter of theta_M's directions, but no more than
RANK = 16


@dataclass(frozen=True)
class Regime:
    name: str
    about: str
    see: See  # what the attacker makes use of
    noised: bool  # whether noise is on that: then the signs of the last bias do not prove the label


def regimes(model: Model, epsilon: float, delta: float = 1e-5) -> list[Regime]:
    """Those that a model knows: of one without theta_M only its whole gradient can be protected.
    epsilon: of the one message, by each mechanism's own reckoning."""
    theta = {path: p.detach() for path, p in model.by_path[0].items() if is_operator(path)}
    local = PrivacyConfig(mode="local", epsilon=epsilon, delta=delta).guard(["all"], 1, 1.0)
    assert local is not None
    found = [
        Regime("raw", "everything in clear", lambda g, draw: _scaled(g), False),
        Regime("local", "everything clipped and noised", _guarded(local, {}), True),
    ]
    if not theta:
        return found
    basis = {p: leading(t, max(1, min(RANK, min(t.shape) // SHARE))).u for p, t in theta.items()}
    paper = PrivacyConfig(mode="paper", epsilon=epsilon, delta=delta, kappa=KAPPA)
    anisotropic = paper.guard(["all"], 1, 1.0)
    assert anisotropic is not None
    sigma = anisotropic.blocks["all"].sigma
    isotropic, alike = (Guard({"all": Block(1.0, s)}) for s in (sigma, sigma * _power(basis)))

    def rest(gradient: Gradient, draw: np.random.Generator) -> dict[Path, Tensor]:
        return {path: t for path, t in gradient.items() if path not in theta}

    def alone(see: See) -> See:
        return lambda g, draw: see({path: g[path] for path in theta}, draw)

    paper_seen = Regime("paper", "theta_M by UMEDA's mechanism, the rest in clear", rest, False)
    return [
        found[0],
        paper_seen,
        found[1],
        Regime("theta_M raw", "theta_M alone, in clear", alone(found[0].see), False),
        Regime("theta_M isotropic", "theta_M alone, noised", alone(_guarded(isotropic, {})), True),
        Regime(
            "theta_M paper",
            "theta_M alone, by UMEDA's mechanism",
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
    """By how much isotropic noise must be larger to have as much power as UMEDA's."""
    rows = sum(len(u) for u in basis.values())
    inside = sum(u.shape[1] for u in basis.values())
    return math.sqrt((inside + KAPPA**2 * (rows - inside)) / rows)
