"""Finished runs side by side: means over seeds, spread, and which differences exceed it.

Runs with the same seed share splits, roles, initial weights, cohorts and batch orders, so methods
are compared by their paired differences. Cells of a grid are different experiments: their runs are
neither averaged as if they were seeds nor paired with each other.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from communis.core.errors import CommunisError
from communis.core.metrics import better
from communis.core.selection import SELECTS, Select
from communis.results.estimate import Estimate, ranked, verdict
from communis.results.finished import Finished, read
from communis.run.folder import RECORDS, RunFolder

log = logging.getLogger("communis")
BASE = "fedavg"  # the plainest method
LEADING = ("accuracy", "macro_f1", "mae")  # metrics that are shown side by side, before others
LONGEST = 60  # characters of a label that says in what settings runs differ


@dataclass(frozen=True)
class Cost:
    """What a method costs."""

    parameters: float  # mean per client, private ones included; NaN where it was not written down
    bytes_up: float  # per client and round, payload
    bytes_down: float
    total_bytes: float  # of the whole run, all clients, both directions, framing included
    seconds: float  # wall time per round without evaluation
    refused: int  # messages and private states, over all seeds


@dataclass(frozen=True)
class Row(Cost):
    """One method's line of a comparison."""

    method: str
    scores: Mapping[str, Estimate]  # by metric
    selected: Mapping[Select, Estimate]  # the primary metric, by the round that counts
    weakest: Estimate  # the primary metric of the weakest client
    difference: Estimate  # primary metric minus that of the best method, paired by seed
    verdict: str


def collect(paths: Iterable[str | Path]) -> list[Finished]:
    """The runs at these folders and below, sorted by method and seed, then as they were named. A
    run that is there twice, or was done twice, is counted once."""
    found: dict[Path, Finished] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise CommunisError(f"{path}: no such folder")
        there = {p.parent for name in ("config.toml", RECORDS) for p in path.rglob(name)}
        inside = [folder for folder in sorted(there) if _begun(folder)]
        if not inside:
            raise CommunisError(f"{path}: holds no run with a finished round")
        found |= {folder: read(folder) for folder in inside}
    return _once(_labelled(sorted(found.values(), key=lambda run: (run.method, run.seed))))


def _begun(folder: Path) -> bool:
    """Whether this is the folder of a run with a finished round. Its configuration or its records
    may be lost: who reads it says so."""
    saved = RunFolder(folder).saved() > 0
    if (folder / RECORDS).exists():
        return saved or (folder / "config.toml").exists()
    return saved


def _labelled(runs: Sequence[Finished]) -> list[Finished]:
    """Runs of one method that differ within a cell get labels that say in what."""
    labels = {}
    for method, group in grouped(runs).items():
        differ = sorted({key for some in cells(group).values() for key in _differing(some)})
        called: dict[str, str] = {}  # by what differs
        for run in group:
            about = ", ".join(f"{k.removeprefix('method.')}={run.settings.get(k)}" for k in differ)
            if about not in called:
                name = about if len(about) <= LONGEST else _home(run.path)
                called[about] = _unused(name, called.values())
            labels[run.path] = f"{method} ({called[about]})" if differ else method
    return [replace(run, label=labels[run.path]) for run in runs]


def _once(runs: Sequence[Finished]) -> list[Finished]:
    """Of several runs of one method, cell and seed with the same settings the longest: a seed that
    counts twice would weigh more than others. Refused if they disagree."""
    kept: dict[tuple[str, str, int], Finished] = {}
    for run in sorted(runs, key=lambda run: -len(run.records)):
        other = kept.setdefault((run.method, run.place, run.seed), run)
        if other is run:
            continue
        if not _agree(run, other):
            raise CommunisError(
                f"{other.path} and {run.path}: both are {run.method}, seed {run.seed}, with the "
                "same settings, but their scores differ; leave one of them out"
            )
        log.info("%s is the same run as %s: it counts once", run.path, other.path)
    return [run for run in runs if run is kept[run.method, run.place, run.seed]]


def _agree(run: Finished, longer: Finished) -> bool:
    """Whether the rounds that both have were scored alike."""
    theirs = [record.scores for record in longer.records]
    mine = [record.scores for record in run.records]
    return str(mine) == str(theirs[: len(mine)])  # as text, where NaN equals NaN


def _home(path: Path) -> str:
    """The folder that tells a run from others: its own, or that of its comparison."""
    path = path.resolve()
    return path.parent.parent.name if re.fullmatch(r"seed\d+", path.name) else path.name


def _unused(name: str, taken: Collection[str]) -> str:
    """The name, with a number if it is taken."""
    names = (name, *(f"{name} {i}" for i in range(2, len(taken) + 2)))
    return next(one for one in names if one not in taken)


def _differing(runs: Sequence[Finished]) -> set[str]:
    """The settings in which runs differ; one that an older run does not know yet is none."""
    keys = {key for run in runs for key in run.settings}
    values = {key: {run.settings[key] for run in runs if key in run.settings} for key in keys}
    return {key for key, found in values.items() if len(found) > 1}


def grouped(runs: Sequence[Finished]) -> dict[str, list[Finished]]:
    """The runs of every method."""
    names = dict.fromkeys(run.method for run in runs)
    return {name: [run for run in runs if run.method == name] for name in names}


def cells(runs: Sequence[Finished]) -> dict[str, list[Finished]]:
    """The runs of every cell of a grid, by the cell's name; it has none where there is no grid.
    Cells come in the order of the experiment's file."""
    places = dict.fromkeys(run.place for run in sorted(runs, key=lambda run: run.position))
    return {place: [run for run in runs if run.place == place] for place in places}


def mixed(runs: Sequence[Finished]) -> bool:
    """Whether clients of one fleet have different models."""
    return any(len(set(run.models.values())) > 1 for run in runs)


def plainest(runs: Sequence[Finished]) -> str:
    """What the runs of fedavg are called: of several settings of it, those without a name of their
    own; empty where it was not run."""
    found = [run for run in runs if run.config["method"]["name"] == BASE]
    return min(found, key=lambda run: bool(run.config.get("variant"))).method if found else ""


def scored(runs: Sequence[Finished]) -> list[Finished]:
    """Those that were evaluated at least once; of a method in a cell the finished ones, if there
    are any: scores of different rounds have no mean."""
    seen = [run for run in runs if run.evaluated]
    finished = {(run.method, run.place) for run in seen if run.complete}
    return [run for run in seen if run.complete or (run.method, run.place) not in finished]


def known(runs: Sequence[Finished]) -> list[str]:
    """The test scores that every run has, other views and measures (`metric@view`) included."""
    sets = [[key[5:] for key in run.evaluated[-1].scores if key.startswith("test.")]
            for run in scored(runs)]  # fmt: skip
    return [name for name in sets[0] if all(name in other for other in sets)] if sets else []


def metrics(runs: Sequence[Finished]) -> list[str]:
    """The test metrics that every run has, of the methods' main predictions."""
    return [name for name in known(runs) if "@" not in name]


def rows(runs: Sequence[Finished], metric: str, select: Select = "last") -> list[Row]:
    """One row per method that was evaluated, best first. The runs are those of one cell. The
    primary metric chooses the round, and everything else is read there."""
    runs = scored(runs)
    if len(cells(runs)) > 1:
        raise CommunisError(f"compare each cell by itself: {'; '.join(cells(runs))}")
    if metric not in (available := known(runs)):
        there = f"there are {', '.join(available)}" if available else "nothing was evaluated yet"
        raise CommunisError(f"no metric {metric!r} in these runs; {there}")
    groups, (order, _) = grouped(runs), ranking(runs, metric, select)
    first = [name for name in (metric, *LEADING) if name in available]
    shown = list(dict.fromkeys([*first, *metrics(runs)]))
    return [_row(groups[name], groups[order[0]], shown, metric, select) for name in order]


def ranking(
    runs: Sequence[Finished], metric: str, select: Select
) -> tuple[list[str], Sequence[int]]:
    """The methods from best to worst, and the seeds that decide: those that all methods with a mean
    have, so that none is judged by easier ones. If that leaves a single one, the methods with most
    seeds decide and the others come after them. Where none is shared, each has its own."""
    places = cells(runs)
    found = {name: by_seed(group, metric, select, places) for name, group in grouped(runs).items()}
    means = {name: Estimate.of(scores.values()) for name, scores in found.items()}
    finite = [name for name, mean in means.items() if math.isfinite(mean.mean)]
    shared = _common([found[name] for name in finite])
    if len(shared) < 2:
        most = max((len(found[name]) for name in finite), default=0)
        finite = [name for name in finite if len(found[name]) == most]
        shared = _common([found[name] for name in finite])
    if not shared:
        return ranked(means, metric), []
    first = {name: Estimate.of(found[name][seed] for seed in shared) for name in finite}
    rest = {name: mean for name, mean in means.items() if name not in first}
    return ranked(first, metric) + ranked(rest, metric), shared


def _common(scores: Sequence[Mapping[int, float]]) -> list[int]:
    """The seeds that all have."""
    return sorted(set.intersection(*map(set, scores))) if scores else []


def _row(
    group: Sequence[Finished],
    best: Sequence[Finished],
    shown: Sequence[str],
    metric: str,
    select: Select,
) -> Row:
    difference = paired(group, best, metric, select)
    clients = [run.by_client(metric, select) for run in group]
    worst = "min" if better(metric) > 0 else "max"
    return Row(
        **vars(cost(group)),
        method=group[0].method,
        scores={m: estimate(group, m, select, by=metric) for m in shown},
        selected={s: estimate(group, metric, s) for s in SELECTS},
        weakest=Estimate.of(getattr(scores, worst)(skipna=False) for scores in clients),
        difference=difference,
        verdict=judge(group, best, difference, metric),
    )


def cost(group: Sequence[Finished]) -> Cost:
    """What the runs of one method cost."""
    records = [record for run in group for record in run.records]
    # A round's bytes are shared by the cohort, or with pooled data by everybody.
    senders = sum(len(run.clients) if run.fleet["pooled"] else len(record.cohort)
                  for run in group for record in run.records) or 1  # fmt: skip
    sizes = [client.get("parameters", math.nan) for run in group for client in run.clients]
    total = sum(r.bytes_up + r.bytes_down + r.bytes_framing for r in records)
    return Cost(
        parameters=fmean(sizes) if sizes else math.nan,
        bytes_up=sum(r.bytes_up for r in records) / senders,
        bytes_down=sum(r.bytes_down for r in records) / senders,
        total_bytes=total / len(group),
        seconds=fmean(record.seconds for record in records),
        refused=sum(len(record.refused) for record in records),
    )


def comparable(one: Finished, other: Finished) -> bool:
    """Whether a difference of two runs means something. A setting that an older run does not know
    yet makes no difference."""
    return all(other.bench.get(key, value) == value for key, value in one.bench.items())


def judge(
    group: Sequence[Finished], best: Sequence[Finished], difference: Estimate, metric: str
) -> str:
    """The verdict on a method against the best one; empty for the best itself, if it has a mean."""
    if group is best and math.isfinite(difference.mean):
        return ""
    theirs = {run.place: run for run in best}
    if not all(comparable(run, theirs.get(run.place, run)) for run in group):
        return "other data, fleet or run: not comparable"
    return verdict(difference, metric)


def by_seed(
    runs: Sequence[Finished],
    metric: str,
    select: Select,
    everywhere: Collection[str] = (),
    by: str = "",
) -> dict[int, float]:
    """A method's score by seed: its mean over cells, of the seeds that every cell has; those
    `everywhere` too, so that methods are averaged over the same ones. by: the metric that chooses
    the round."""
    found = {(run.seed, run.place): run.final(metric, select, by) for run in runs}
    return averaged(found, everywhere)


def averaged(
    found: Mapping[tuple[int, str], float], everywhere: Collection[str] = ()
) -> dict[int, float]:
    """What was found by seed and cell as means over cells, of the seeds that every cell has."""
    places = sorted({place for _, place in found} | set(everywhere))
    seeds = sorted({seed for seed, _ in found})
    complete = [seed for seed in seeds if all((seed, place) in found for place in places)]
    return {seed: fmean(found[seed, place] for place in places) for seed in complete}


def estimate(
    runs: Sequence[Finished],
    metric: str,
    select: Select,
    everywhere: Collection[str] = (),
    by: str = "",
) -> Estimate:
    """A method's score over seeds."""
    return Estimate.of(by_seed(runs, metric, select, everywhere, by).values())


def paired(
    group: Sequence[Finished],
    best: Sequence[Finished],
    metric: str,
    select: Select = "last",
    everywhere: Collection[str] = (),
) -> Estimate:
    """The difference of two methods over the seeds that both have in all cells of either."""
    places = {run.place for run in (*group, *best)} | set(everywhere)
    mine, other = (by_seed(runs, metric, select, places) for runs in (group, best))
    return Estimate.of(mine[seed] - other[seed] for seed in mine if seed in other)
