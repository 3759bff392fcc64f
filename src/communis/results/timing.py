"""Finished runs by the device clock: what a round takes, how much faster that is than with the
plainest method, and what it takes until a target score is reached.

Ratios are taken between runs of the same seed and cell, which share their fleet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import pandas as pd

from communis.core.errors import CommunisError
from communis.core.metrics import better
from communis.core.selection import Select
from communis.results.compare import (
    averaged,
    comparable,
    estimate,
    plainest,
    ranking,
    runs_by_cell,
    runs_by_method,
    scored,
)
from communis.results.curves import Band, Bands
from communis.results.estimate import Estimate
from communis.results.finished import Finished

STEP = 0.05  # targets that are not named are multiples of this
PARTS = ("compute", "communication", "idle")  # of a device's round
SPENT = ("rounds", "seconds", "joules", "megabytes")


@dataclass(frozen=True)
class Reach:
    """What a method took until its test score first reached the target. A run that never reached it
    counts with all its rounds: with fewer `reached` than `runs` the means are lower bounds."""

    rounds: Estimate
    seconds: Estimate
    joules: Estimate
    megabytes: Estimate  # of the whole fleet, both directions, framing included
    reached: int
    runs: int


@dataclass(frozen=True)
class Clocked:
    """One method by the device clock; NaN without a clock."""

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
    several: bool  # several were given, and this is the `feasible` one
    base: str  # what speedups are against
    rows: Sequence[Clocked]


def timing(
    runs: Sequence[Finished], metric: str, select: Select = "last", targets: Sequence[float] = ()
) -> Timing | None:
    """Means over cells seed by seed, then over seeds. One of the targets counts (see `named` and
    `feasible`); without targets, the highest multiple of STEP that the mean curve of every method
    reached in every cell. None if no run has a clock."""
    runs = scored(runs)
    groups, places = runs_by_method(runs), runs_by_cell(runs)
    pace = {name: _by_run(group, _round_seconds) for name, group in groups.items()}
    base = _base(runs, pace)
    if not base:
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
    """The targets from the easiest to the hardest: those asked for, else those of the runs' files,
    if these agree. A target of 0 counts as none."""
    for target in asked:
        if not math.isfinite(target):
            raise CommunisError(f"target: expected a finite number, got {target}")
    in_files = {frozenset(run.targets) for run in runs if run.targets}
    agreed = in_files.pop() if len(in_files) == 1 else frozenset()
    chosen = {target for target in asked if target} or agreed
    return tuple(sorted(chosen, key=lambda target: better(metric) * target))


def feasible(runs: Sequence[Finished], metric: str, targets: Sequence[float]) -> float:
    """The hardest target that every run reached, else the easiest one."""
    reached = [
        target for target in targets if all(first_round(run, metric, target) for run in runs)
    ]
    return reached[-1] if reached else targets[0]


def first_round(run: Finished, metric: str, target: float) -> int | None:
    """The first evaluated round whose test score reached the target."""
    for record in run.evaluated:
        score = record.scores.get(f"test.{metric}", math.nan)
        if better(metric) * (score - target) >= -1e-9:
            return record.round
    return None


def progress(run: Finished, metric: str) -> pd.DataFrame:
    """The test score of every evaluated round, and what was spent until then."""
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
    spent: dict[tuple[int, str], Mapping[Hashable, float]] = {}
    reached = 0
    for run in group:
        table = progress(run, metric)
        first = first_round(run, metric, target)
        if first is not None:
            reached += 1
        last = first or table.index[-1]
        spent[run.seed, run.place] = table.loc[last, [*SPENT]].to_dict()
    means = {}
    for name in SPENT:
        by_run = {key: float(values[name]) for key, values in spent.items()}
        means[name] = _estimate(by_run, everywhere)
    return Reach(**means, reached=reached, runs=len(group))


def automatic(runs: Sequence[Finished], metric: str) -> float:
    """The highest multiple of STEP (where less is better, the lowest) that the mean curve of every
    method reached in every cell; NaN if there is none. Methods without a finite curve do not count.
    """
    sign = better(metric)
    tops = []
    for inside in runs_by_cell(runs).values():
        for group in runs_by_method(inside).values():
            scores = [progress(run, metric)["score"] for run in group]
            means = pd.concat(scores, axis=1, join="inner").mean(axis=1, skipna=False)
            tops.append(float((sign * means).max()))
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


def _estimate(values: ByRun, everywhere: Collection[str] = ()) -> Estimate:
    return Estimate.of(averaged(values, everywhere).values())


def _base(runs: Sequence[Finished], pace: Mapping[str, ByRun]) -> str:
    """The label of fedavg if it has a clock, else of the method whose rounds take longest; empty if
    no method has a clock."""
    means = {name: fmean(by_run.values()) for name, by_run in pace.items()}
    clocked = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    plain = plainest([run for run in runs if run.method in clocked])
    return plain or max(clocked, key=lambda name: clocked[name], default="")


def _speedup(group: Sequence[Finished], base: Sequence[Finished]) -> Estimate:
    """How many rounds a method does in the time of one round of the base, on the same devices."""
    base_runs = {(run.seed, run.place): run for run in base}
    speedups = {}
    for run in group:
        other = base_runs.get((run.seed, run.place))
        if other is None or not comparable(run, other):
            continue
        seconds = _round_seconds(run)
        speedup = _round_seconds(other) / seconds if seconds > 0 else math.nan
        speedups[run.seed, run.place] = speedup
    return _estimate(speedups)


@dataclass(frozen=True)
class Tradeoff:
    """The speedup of a method, and its score."""

    speedup: Estimate
    score: Estimate


def tradeoffs(
    runs: Sequence[Finished], times: Timing, metric: str, select: Select
) -> dict[str, Tradeoff]:
    """The methods that have a mean speedup and a mean score."""
    groups, places = runs_by_method(runs), runs_by_cell(runs)
    both = {}
    for row in times.rows:
        score = estimate(groups[row.method], metric, select, places)
        if math.isfinite(score.mean) and math.isfinite(row.speedup.mean):
            both[row.method] = Tradeoff(row.speedup, score)
    return both


def score_curves(runs: Sequence[Finished], times: Timing, metric: str, spent: str) -> Bands:
    """The mean test score against the simulated `spent`, seconds or joules, of every method with a
    clock. Seeds draw devices and windows of their own, so what is spent is a mean too."""
    groups = runs_by_method(runs)
    bands = {}
    for row in times.rows:
        if not math.isfinite(row.seconds.mean):
            continue
        tables = [progress(run, metric)[[spent, "score"]] for run in groups[row.method]]
        joint = pd.concat(tables, axis=1, join="inner")
        across = joint[[spent]].mean(axis=1).tolist()
        bands[row.method] = Band.of(across, joint[["score"]].to_numpy().T.tolist())
    return bands


def coverages(groups: Mapping[str, Sequence[Finished]]) -> list[list[str]]:
    """Rows of methods that differ in nothing but their coverage, from the least to the most."""
    rows: dict[object, list[tuple[float, str]]] = {}
    for name, group in groups.items():
        by_cell = {run.place: dict(run.settings) for run in group}
        coverage, *_ = [settings.pop("method.coverage", None) for settings in by_cell.values()]
        if coverage is None:
            continue
        others = tuple((place, tuple(sorted(own.items()))) for place, own in by_cell.items())
        rows.setdefault(others, []).append((float(coverage), name))
    return [[name for _, name in sorted(row)] for row in rows.values()]


def client_rounds(group: Sequence[Finished]) -> pd.DataFrame:
    """The clock of all runs of a method, with a column `kind` that says what a client is, and
    `communication`, the seconds of both directions."""
    parts = []
    for run in group:
        table = run.clock
        kinds = table["client"].map(dict(run.kinds))
        both = table["down"] + table["up"]
        parts.append(table.assign(kind=kinds, communication=both, seed=run.seed, cell=run.place))
    return pd.concat(parts)


def by_type(group: Sequence[Finished]) -> pd.DataFrame:
    """Mean seconds of a round by device and sensors, the most frequent first; `clients`: how many
    a run has of them."""
    rounds = client_rounds(group)
    means = rounds.groupby("kind")[[*PARTS]].mean()
    by_seed = rounds.groupby(["kind", "seed"])["client"].nunique()
    means["clients"] = by_seed.groupby("kind").mean()
    return means.sort_values("clients", ascending=False, kind="stable")


def devices(runs: Sequence[Finished]) -> dict[str, pd.DataFrame]:
    """`by_type` of every method that has a clock."""
    tables = {name: by_type(group) for name, group in runs_by_method(runs).items()}
    return {name: table for name, table in tables.items() if len(table)}


def computing_share(tables: Iterable[pd.DataFrame]) -> float:
    """How much of the time that devices are busy they compute; the rest they send and receive."""
    table = pd.concat(tables)
    totals = table[["compute", "communication"]].mul(table["clients"], axis=0).sum()
    return float(totals["compute"] / max(totals.sum(), 1e-300))
