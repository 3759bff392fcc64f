"""What methods cost against the plainest one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from communis.results.compare import Cost, cost, plainest, runs_by_method
from communis.results.finished import Finished

QUANTITIES = ("parameters", "bytes_up", "bytes_down", "bytes_both", "seconds")


@dataclass(frozen=True)
class Overhead:
    """One method against the base, in the cells and seeds that both have."""

    method: str
    cost: Cost
    private: float  # mean number of parameters that a client keeps to itself
    ratios: Mapping[str, float]  # by quantity, to the base; NaN where there is none


@dataclass(frozen=True)
class Overheads:
    base: str
    rows: Sequence[Overhead]  # that of the base first


def overheads(runs: Sequence[Finished]) -> Overheads | None:
    """All methods against fedavg; None where fedavg was not run, or nothing else."""
    groups = runs_by_method(runs)
    base = plainest(runs)
    if not base or len(groups) < 2:
        return None
    others = [name for name in groups if name != base]
    return Overheads(base, [_overhead(groups[name], groups[base]) for name in (base, *others)])


def _overhead(group: Sequence[Finished], base: Sequence[Finished]) -> Overhead:
    mine = cost(group)
    where = {(run.seed, run.place) for run in group}
    same = [run for run in base if (run.seed, run.place) in where]
    theirs = cost(same) if same else None
    ratios = {}
    for name in QUANTITIES:
        base_value = getattr(theirs, name) if theirs else math.nan
        ratios[name] = _ratio(getattr(mine, name), base_value)
    return Overhead(group[0].method, mine, private(group), ratios)


def _ratio(value: float, base: float) -> float:
    ratio = value / base if base > 0 else math.nan
    return ratio if math.isfinite(ratio) else math.nan


def private(group: Sequence[Finished]) -> float:
    """The mean number of parameters that a client keeps to itself; NaN where that was not written
    down."""
    counts = [client.get("private", math.nan) for run in group for client in run.clients]
    return fmean(counts) if counts else 0.0
