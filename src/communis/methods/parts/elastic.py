"""Elastic training: how many groups a device trains in a round, and which."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import median

import numpy as np

from communis.core.arrays import Array


def least(coverage: float, blocks: Array, owned: Array) -> Array:
    """How many groups each device has to train: so many `blocks`, or a share of what it owns if
    that is more."""
    least: Array = np.maximum(blocks, np.ceil(coverage * owned - 1e-9).astype(int))
    return least


def target(per_group: Array, least: Array, overhead: float = 0.0) -> float:
    """The shortest time in which every device trains at least so many groups."""
    return float(np.max(overhead + per_group * least))


def budget(
    seconds: float, per_group: Array, blocks: Array, owned: Array, overhead: float = 0.0
) -> Array:
    """How many groups each device can train in a time: never fewer than so many `blocks`, never
    more than it owns."""
    there = np.asarray(per_group) > 0  # who trains nothing takes no time
    fit = np.floor((seconds - overhead) / np.where(there, per_group, 1.0) * (1 + 1e-9))
    return np.clip(np.where(there, fit, owned), blocks, owned).astype(int)


def allocate(
    owned: Sequence[str], mandatory: Collection[str], budget: int, gain: Mapping[str, float]
) -> list[str]:
    """The mandatory groups, whatever the budget, and as many of the greatest gain as it allows; of
    equal ones the first. A group whose gain is not known counts as the median one."""
    known = median(gain.values()) if gain else 0.0
    rest = sorted((j for j in owned if j not in mandatory), key=lambda j: -gain.get(j, known))
    chosen = {*mandatory, *rest[: max(0, budget - len(mandatory))]}
    return [j for j in owned if j in chosen]
