"""Elastic training: the number of groups that a device trains in a round, and their selection.

The equation is that of RELIEF. In its symbols, per_group is tau_n, blocks |M_n|, owned G_n or its
size, overhead T_o, seconds T*; `budget` returns k_n and `allocate` S_n.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median

import numpy as np

from communis.core.arrays import Array


def least(coverage: float, blocks: Array, owned: Array) -> Array:
    """Returns the least number of groups of each device: its number of mandatory `blocks`, or the
    share `coverage` of the groups that it owns, whichever is larger."""
    share = np.ceil(coverage * owned - 1e-9).astype(int)
    least: Array = np.maximum(blocks, share)
    return least


def target(per_group: Array, least: Array, overhead: float = 0.0) -> float:
    """Returns the shortest time in which every device can train its least number of groups."""
    return float(np.max(overhead + per_group * least))


def budget(
    seconds: float, per_group: Array, blocks: Array, owned: Array, overhead: float = 0.0
) -> Array:
    """Returns the number of groups that each device can train in this time: at least its number of
    mandatory `blocks`, at most the groups that it owns."""
    takes_time = np.asarray(per_group) > 0  # a device without training windows takes no time
    per_group = np.where(takes_time, per_group, 1.0)
    fit = np.floor((seconds - overhead) / per_group * (1 + 1e-9))
    return np.clip(np.where(takes_time, fit, owned), blocks, owned).astype(int)  # Equation 7


def allocate(
    owned: Sequence[str], mandatory: Collection[str], budget: int, gain: Mapping[str, float]
) -> list[str]:
    """Returns the mandatory groups, whatever the budget, and as many groups with the largest gain
    as the budget allows. Ties go to the first group. A group without a known gain counts as the
    median."""
    unknown = median(gain.values()) if gain else 0.0
    others = [j for j in owned if j not in mandatory]
    ranked = sorted(others, key=lambda j: -gain.get(j, unknown))
    chosen = {*mandatory, *ranked[: max(0, budget - len(mandatory))]}
    return [j for j in owned if j in chosen]
