"""Finished runs by the device clock: what a round takes, how much faster that is than with the
plainest method, and what it takes until a target score is reached.

Ratios are taken between runs of the same seed and cell, which share their fleet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from communis.core.errors import CommunisError
from communis.core.metrics import better
from communis.core.selection import Select
from communis.results.compare import (
    averaged,
    cells,
    comparable,
    grouped,
    plainest,
    ranking,
    scored,
)
from communis.results.estimate import Estimate
from communis.results.finished import Finished

STEP = 0.05  # targets that are not named are multiples of this
PARTS = ("compute", "communication", "idle")  # of a device's round
SPENT = ("rounds", "seconds", "joules", "megabytes")


@dataclass(frozen=True)
class Reach:
    """What it took until the test score first reached the target. A run that never did counts with
    all that it took: with fewer `reached` than `runs` the means are lower bounds."""

    rounds: Estimate
    seconds: Estimate
    joules: Estimate
    megabytes: Estimate  # of the whole fleet, both directions, framing included
    reached: int
    runs: int


@dataclass(frozen=True)
class Clocked:
    """One method by the device clock; NaN where there is none."""

    method: str
    seconds: Estimate  # simulated, per round
    joules: Estimate  # of the whole fleet, per round
    speedup: Estimate  # of a round against the base
    until: Reach


@dataclass(frozen=True)
class Timing:
    """All methods by the device clock, in the order of the comparison."""

    target: float  # NaN: no multiple of STEP was reached by all
    given: bool  # by the user, not chosen
    several: bool  # were given, of which this is one; see `feasible`
    base: str  # what speedups are against
    rows: Sequence[Clocked]


def timing(
    runs: Sequence[Finished], metric: str, select: Select = "last", targets: Sequence[float] = ()
) -> Timing | None:
    """Means over cells seed by seed, then over seeds. One of the targets counts (see `named` and
    `feasible`), or without any the highest multiple of STEP that the mean curve of every method
    reached in every cell. None if no run has a clock."""
    runs = scored(runs)
    groups, places = grouped(runs), cells(runs)
    pace = {name: _by_run(group, _round_seconds) for name, group in groups.items()}
    if not (base := _base(runs, pace)):
        return None
    targets = named(runs, metric, targets)
    target = feasible(runs, metric, targets) if targets else automatic(runs, metric)
    rows = [
        Clocked(
            method=name,
            seconds=_estimate(pace[name], places),
            joules=_estimate(_by_run(groups[name], _round_joules), places),
            speedup=_speedup(groups[name], groups.get(base, [])),
            until=to_target(groups[name], metric, target, places),
        )
        for name in ranking(runs, metric, select)[0]
    ]
    return Timing(target, bool(targets), len(targets) > 1, base, rows)


def named(runs: Sequence[Finished], metric: str, asked: Sequence[float] = ()) -> tuple[float, ...]:
    """The targets from the easiest to the hardest: those asked for, else those in the runs' files
    if they agree on them. 0 is none."""
    if wrong := [target for target in asked if not math.isfinite(target)]:
        raise CommunisError(f"target: expected a finite number, got {wrong[0]}")
    found = {frozenset(run.targets) for run in runs if run.targets}
    own = found.pop() if len(found) == 1 else frozenset()
    return tuple(sorted(set(filter(None, asked)) or own, key=lambda one: better(metric) * one))


def feasible(runs: Sequence[Finished], metric: str, targets: Sequence[float]) -> float:
    """The hardest target that every run reached, else the easiest."""
    reached = [t for t in targets if all(first_round(run, metric, t) for run in runs)]
    return (reached or targets[:1])[-1]


def first_round(run: Finished, metric: str, target: float) -> int | None:
    """The first evaluated round whose test score reached the target."""
    for record in run.evaluated:
        score = record.scores.get(f"test.{metric}", math.nan)
        if better(metric) * (score - target) >= -1e-9:
            return record.round
    return None


def progress(run: Finished, metric: str) -> pd.DataFrame:
    """By evaluated round: the test score, and what was spent until then."""
    table = pd.DataFrame(
        {
            "seconds": [r.virtual_seconds for r in run.records],
            "joules": [r.virtual_joules for r in run.records],
            "megabytes": [(r.bytes_up + r.bytes_down + r.bytes_framing) / 1e6 for r in run.records],
        },
        index=pd.Index([r.round for r in run.records], name="round"),
    ).cumsum(skipna=False)
    scores = [r.scores.get(f"test.{metric}", math.nan) for r in run.records]
    table = table.assign(rounds=table.index.astype(float), score=scores)
    return table.loc[[r.round for r in run.evaluated]]


def to_target(
    group: Sequence[Finished], metric: str, target: float, everywhere: Collection[str] = ()
) -> Reach:
    """What the runs of one method spent until they reached the target."""
    found, reached = dict[tuple[int, str], Mapping[Hashable, float]](), 0
    for run in group:
        table = progress(run, metric)
        first = first_round(run, metric, target)
        reached += first is not None
        found[run.seed, run.place] = table.loc[first or table.index[-1], [*SPENT]].to_dict()
    means = {
        name: _estimate({key: float(one[name]) for key, one in found.items()}, everywhere)
        for name in SPENT
    }
    return Reach(**means, reached=reached, runs=len(group))


def automatic(runs: Sequence[Finished], metric: str) -> float:
    """The highest multiple of STEP (where less is better, the lowest) that the mean curve of every
    method reached in every cell; NaN if there is none. Methods without a finite curve have no say.
    """
    sign = better(metric)
    tops = []
    for group in (group for part in cells(runs).values() for group in grouped(part).values()):
        curves = pd.concat([progress(run, metric)["score"] for run in group], axis=1, join="inner")
        tops.append(float((sign * curves.mean(axis=1, skipna=False)).max()))
    finite = [top for top in tops if math.isfinite(top)]
    target = sign * STEP * math.floor(min(finite) / STEP + 1e-9) if finite else math.nan
    return round(target, 9) if target > 0 else math.nan


ByRun = Mapping[tuple[int, str], float]  # by seed and cell


def _by_run(group: Sequence[Finished], value: Callable[[Finished], float]) -> ByRun:
    return {(run.seed, run.place): value(run) for run in group}


def _round_seconds(run: Finished) -> float:
    return fmean(record.virtual_seconds for record in run.records)


def _round_joules(run: Finished) -> float:
    return fmean(record.virtual_joules for record in run.records)


def _estimate(found: ByRun, everywhere: Collection[str] = ()) -> Estimate:
    return Estimate.of(averaged(found, everywhere).values())


def _base(runs: Sequence[Finished], pace: Mapping[str, ByRun]) -> str:
    """fedavg if it has a clock, else the method whose rounds take longest."""
    means = {name: fmean(found.values()) for name, found in pace.items()}
    clocked = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    plain = plainest([run for run in runs if run.method in clocked])
    return plain or max(clocked, key=lambda name: clocked[name], default="")


def _speedup(group: Sequence[Finished], base: Sequence[Finished]) -> Estimate:
    """How many rounds a method does in the time of one of the base, on the same devices."""
    theirs = {(run.seed, run.place): run for run in base}
    pairs = [(run, theirs[run.seed, run.place]) for run in group if (run.seed, run.place) in theirs]
    found = {
        (run.seed, run.place): _round_seconds(other) / own if own > 0 else math.nan
        for run, other in pairs
        for own in [_round_seconds(run)]
        if comparable(run, other)
    }
    return _estimate(found)


def coverages(groups: Mapping[str, Sequence[Finished]]) -> list[list[str]]:
    """Rows of methods that differ in nothing but their coverage, from the least to the most."""
    rows: dict[object, list[tuple[float, str]]] = {}
    for name, group in groups.items():
        settings = {run.place: dict(run.settings) for run in group}
        values = [found.pop("method.coverage", None) for found in settings.values()]
        if values[0] is not None:
            alike = tuple((place, tuple(sorted(s.items()))) for place, s in settings.items())
            rows.setdefault(alike, []).append((float(values[0]), name))
    return [[name for _, name in sorted(row)] for row in rows.values()]


def by_type(group: Sequence[Finished]) -> pd.DataFrame:
    """Mean seconds of a round by device and sensors, the most frequent first; `clients`: how many
    a run has of them."""
    parts = []
    for run in group:
        t = run.clock
        t = t.assign(
            kind=t["client"].map(dict(run.kinds)), communication=t["down"] + t["up"], seed=run.seed
        )
        parts.append(t)
    found = pd.concat(parts)
    by_kind = found.groupby("kind")
    means = by_kind[[*PARTS]].mean()
    means["clients"] = found.groupby(["kind", "seed"])["client"].nunique().groupby("kind").mean()
    return means.sort_values("clients", ascending=False, kind="stable")
