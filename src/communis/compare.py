"""Finished runs side by side: means over seeds, spread, and which differences exceed it.

Runs with the same seed share splits, roles, initial weights, cohorts and batch orders, so methods
are compared by their paired differences.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pandas as pd

from communis.core import CommunisError
from communis.exchange import RoundRecord
from communis.runfolder import RunFolder

LOWER_IS_BETTER = ("nll", "brier", "ece", "mae", "rmse", "mpjpe", "mpjpe_absolute")
# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
      2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
      2.052, 2.048, 2.045, 2.042)  # fmt: skip


# Settings that change no number of a run, or that runs to be averaged over may differ in.
_FREE = ("name", "seed", "run.workers", "run.start_method", "run.checkpoint_every", "run.device")


@dataclass(frozen=True)
class Finished:
    """A run as read from its folder."""

    path: Path
    config: Mapping[str, Any]
    records: Sequence[RoundRecord]
    label: str = ""  # the method, with what tells it from others of its name; see `collect`

    @property
    def method(self) -> str:
        return self.label or str(self.config["method"]["name"])

    @cached_property
    def settings(self) -> Mapping[str, str]:
        """Every setting that matters, by dotted key."""
        flat = {}
        for table, content in self.config.items():
            items = content.items() if isinstance(content, Mapping) else [("", content)]
            for key, value in items:
                flat[f"{table}.{key}".rstrip(".")] = json.dumps(value, default=str)
        return {key: value for key, value in flat.items() if key not in _FREE}

    @property
    def bench(self) -> Mapping[str, str]:
        """The settings that runs must share for their difference to mean something."""
        return {k: v for k, v in self.settings.items() if not k.startswith("method.")}

    @property
    def seed(self) -> int:
        return int(self.config["seed"])

    @property
    def evaluated(self) -> Sequence[RoundRecord]:
        return [record for record in self.records if record.scores]

    @property
    def complete(self) -> bool:
        return len(self.records) == int(self.config["run"]["rounds"])

    @cached_property
    def fleet(self) -> Mapping[str, Any]:
        """Class names and clients, as written when the run began."""
        try:
            found: Mapping[str, Any] = json.loads((self.path / "fleet.json").read_text("utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise CommunisError(f"{self.path / 'fleet.json'}: {error}") from None
        return found

    @cached_property
    def scores(self) -> pd.DataFrame:
        return pd.DataFrame(RunFolder(self.path).scores().to_pandas())

    def final(self, metric: str) -> float:
        """The test score after the last evaluated round; NaN if there is none."""
        last = self.evaluated[-1].scores if self.evaluated else {}
        return last.get(f"test.{metric}", math.nan)


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds with its spread (sample standard deviation; NaN for one seed). If any seed
    has no finite value there is no mean: dropping it would flatter a method that diverges."""

    mean: float
    spread: float
    seeds: int
    diverged: int = 0  # seeds without a finite value

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        diverged = sum(not math.isfinite(value) for value in values)
        if diverged or not values:
            return cls(math.nan, math.nan, len(values), diverged)
        spread = stdev(values) if len(values) > 1 else math.nan
        return cls(fmean(values), spread, len(values))

    @property
    def half_width(self) -> float:
        """Of the 95 % confidence interval of the mean."""
        if self.seeds < 2:
            return math.nan
        return _T[min(self.seeds - 1, len(_T)) - 1] * self.spread / math.sqrt(self.seeds)


@dataclass(frozen=True)
class Row:
    """One method's line of a comparison."""

    method: str
    scores: Mapping[str, Estimate]  # by metric
    weakest: Estimate  # the primary metric of the weakest client
    bytes_up: float  # per client and round, payload
    bytes_down: float
    total_bytes: float  # of the whole run, all clients, both directions, framing included
    seconds: float  # wall time per round without evaluation
    refused: int  # messages, over all seeds
    difference: Estimate  # primary metric minus that of the best method, paired by seed
    verdict: str


def read(path: Path) -> Finished:
    try:
        config = tomllib.loads((path / "config.toml").read_text(encoding="utf-8"))
        name, seed = config["method"]["name"], config["seed"]
    except (OSError, tomllib.TOMLDecodeError, KeyError) as error:
        raise CommunisError(f"{path}: not a run folder (config.toml: {error})") from None
    records = RunFolder(path).records()
    if not records:
        raise CommunisError(f"{path}: {name}, seed {seed}, has no finished round yet")
    return Finished(path, config, records)


def collect(paths: Iterable[str | Path]) -> list[Finished]:
    """The runs at these folders and below, sorted by method and seed."""
    found: dict[Path, Finished] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise CommunisError(f"{path}: no such folder")
        inside = sorted(
            p.parent for p in path.rglob("config.toml") if (p.parent / "records.jsonl").exists()
        )
        if not inside:
            raise CommunisError(f"{path}: holds no run with a finished round")
        found |= {folder: read(folder) for folder in inside}
    return _labelled(sorted(found.values(), key=lambda run: (run.method, run.seed, str(run.path))))


def _labelled(runs: Sequence[Finished]) -> list[Finished]:
    """Runs of one method with different settings get labels that say in what they differ."""
    labels = {}
    for method in dict.fromkeys(run.method for run in runs):
        group = [run for run in runs if run.method == method]
        keys = sorted({key for run in group for key in run.settings})
        differ = [k for k in keys if len({run.settings.get(k, "") for run in group}) > 1]
        for run in group:
            about = ", ".join(f"{k.removeprefix('method.')}={run.settings.get(k)}" for k in differ)
            labels[run.path] = f"{method} ({about})" if differ else method
    return [replace(run, label=labels[run.path]) for run in runs]


def metrics(runs: Sequence[Finished]) -> list[str]:
    """The test metrics that every run has."""
    sets = [[key[5:] for key in run.evaluated[-1].scores if key.startswith("test.")]
            for run in runs if run.evaluated]  # fmt: skip
    return [name for name in sets[0] if all(name in other for other in sets)] if sets else []


def better(metric: str) -> int:
    """1 where larger is better, -1 where smaller is."""
    return -1 if metric.rpartition(".")[2] in LOWER_IS_BETTER else 1


def rows(runs: Sequence[Finished], metric: str) -> list[Row]:
    """One row per method, best first."""
    available = metrics(runs)
    if metric not in available:
        there = f"there are {', '.join(available)}" if available else "nothing was evaluated yet"
        raise CommunisError(f"no metric {metric!r} in these runs; {there}")
    groups: dict[str, list[Finished]] = {}
    for run in runs:
        groups.setdefault(run.method, []).append(run)
    means = {name: Estimate.of([r.final(metric) for r in group]) for name, group in groups.items()}
    finite = [name for name in groups if not means[name].diverged]
    order = sorted(finite, key=lambda name: -better(metric) * means[name].mean)
    order += [name for name in groups if name not in order]
    return [_row(name, groups[name], groups[order[0]], metric, available) for name in order]


def _row(
    name: str,
    group: Sequence[Finished],
    best: Sequence[Finished],
    metric: str,
    available: Sequence[str],
) -> Row:
    records = [record for run in group for record in run.records]
    sent = sum(_senders(run, record) for run in group for record in run.records) or 1
    everything = [
        sum(r.bytes_up + r.bytes_down + r.bytes_framing for r in run.records) for run in group
    ]
    difference = paired(group, best, metric)
    return Row(
        method=name,
        scores={m: Estimate.of([run.final(m) for run in group]) for m in available},
        weakest=Estimate.of([_weakest(run, metric) for run in group]),
        bytes_up=sum(r.bytes_up for r in records) / sent,
        bytes_down=sum(r.bytes_down for r in records) / sent,
        total_bytes=fmean(everything),
        seconds=fmean(record.seconds for record in records),
        refused=sum(len(record.refused) for record in records),
        difference=difference,
        verdict=_judge(group, best, difference, metric),
    )


def _senders(run: Finished, record: RoundRecord) -> int:
    """How many clients a round's bytes are shared by: the cohort, or with pooled data, where the
    only trainer is an extra client beside the server, everybody."""
    return len(run.fleet["clients"]) - 1 if run.fleet["pooled"] else len(record.cohort)


def _judge(
    group: Sequence[Finished], best: Sequence[Finished], difference: Estimate, metric: str
) -> str:
    if group is best:
        return ""
    if group[0].bench != best[0].bench:
        return "other data, fleet or run: not comparable"
    return verdict(difference, metric)


def paired(group: Sequence[Finished], best: Sequence[Finished], metric: str) -> Estimate:
    """The difference of two methods over the seeds that both have."""
    other = {run.seed: run.final(metric) for run in best}
    return Estimate.of([run.final(metric) - other[run.seed] for run in group if run.seed in other])


def verdict(difference: Estimate, metric: str) -> str:
    """What the paired differences to the best method allow to say."""
    if difference.diverged:
        return "diverged"
    if difference.seeds < 2:
        return "one seed: no spread"
    if abs(difference.mean) <= difference.half_width:
        return "within the spread"
    return "worse than the best" if difference.mean * better(metric) < 0 else "better than the best"


def _weakest(run: Finished, metric: str) -> float:
    """The score of the client that fares worst with all its own modalities."""
    last = run.evaluated[-1].round if run.evaluated else -1
    table = run.scores
    own = table[
        (table["round"] == last)
        & (table["split"] == "test")
        & (table["metric"] == metric)
        & (table["class"] == -1)
        & table["own"]
    ]
    if own.empty:
        return math.nan
    return float(own["value"].min() if better(metric) > 0 else own["value"].max())
