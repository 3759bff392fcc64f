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
from communis.exchange.messages import RoundRecord
from communis.results.estimate import Estimate, ranked, significance
from communis.results.finished import Finished, read
from communis.run.folder import RECORDS, RunFolder

log = logging.getLogger("communis")
BASE = "fedavg"  # the plainest method
LEADING = ("accuracy", "macro_f1", "mae")  # metrics that are shown side by side, before others
NOT_COMPARABLE = "other data, fleet or run: not comparable"
LONGEST = 60  # characters of a label that says in what settings runs differ


@dataclass(frozen=True)
class Cost:
    """What the runs of a method cost."""

    parameters: float  # mean per client, private ones included; NaN where it was not written down
    bytes_up: float  # per client and round, payload
    bytes_down: float
    total_bytes: float  # of the whole run, all clients, both directions, framing included
    seconds: float  # wall time per round without evaluation
    refused: int  # messages and private states, over all seeds

    @property
    def bytes_both(self) -> float:
        return self.bytes_up + self.bytes_down


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
    """The runs at these folders and below, sorted by method and seed, then in the order of the
    folders. A run that is there twice, or was done twice, counts once."""
    runs: dict[Path, Finished] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise CommunisError(f"{path}: no such folder")
        files = [*path.rglob("config.toml"), *path.rglob(RECORDS)]
        folders = sorted({file.parent for file in files})
        begun = [folder for folder in folders if _begun(folder)]
        if not begun:
            raise CommunisError(f"{path}: holds no run with a finished round")
        runs |= {folder: read(folder) for folder in begun}
    return _once(_labelled(sorted(runs.values(), key=lambda run: (run.method, run.seed))))


def _begun(folder: Path) -> bool:
    """Whether this is the folder of a run with a finished round. Its configuration or its records
    may be lost; reading it then is an error."""
    saved = RunFolder(folder).saved() > 0
    if (folder / RECORDS).exists():
        return saved or (folder / "config.toml").exists()
    return saved


def _labelled(runs: Sequence[Finished]) -> list[Finished]:
    """The runs with labels. Where runs of one method differ within a cell, the label has the
    settings in which they differ, or the name of a folder if these are too long."""
    labels = {}
    for method, group in runs_by_method(runs).items():
        differing = {key for inside in runs_by_cell(group).values() for key in _differing(inside)}
        names: dict[str, str] = {}  # by the settings that differ
        for run in group:
            settings = [
                f"{key.removeprefix('method.')}={run.settings.get(key)}"
                for key in sorted(differing)
            ]
            about = ", ".join(settings)
            if about not in names:
                name = about if len(about) <= LONGEST else _home(run.path)
                names[about] = _unused(name, names.values())
            labels[run.path] = f"{method} ({names[about]})" if differing else method
    return [replace(run, label=labels[run.path]) for run in runs]


def _once(runs: Sequence[Finished]) -> list[Finished]:
    """The longest of several runs of one method, cell and seed with the same settings: a seed that
    counts twice would weigh more than others. Runs that disagree are refused."""
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
    scores = [record.scores for record in run.records]
    others = [record.scores for record in longer.records]
    return str(scores) == str(others[: len(scores)])  # as text, where NaN equals NaN


def _home(path: Path) -> str:
    """The name of the folder that tells a run from others: its own, or that of its comparison."""
    path = path.resolve()
    return path.parent.parent.name if re.fullmatch(r"seed\d+", path.name) else path.name


def _unused(name: str, taken: Collection[str]) -> str:
    """The name, with a number if it is taken."""
    names = (name, *(f"{name} {i}" for i in range(2, len(taken) + 2)))
    return next(candidate for candidate in names if candidate not in taken)


def _differing(runs: Sequence[Finished]) -> set[str]:
    """The settings in which runs differ. A setting that an older run does not have yet makes no
    difference."""
    keys = {key for run in runs for key in run.settings}
    values = {key: {run.settings[key] for run in runs if key in run.settings} for key in keys}
    return {key for key, several in values.items() if len(several) > 1}


def runs_by_method(runs: Sequence[Finished]) -> dict[str, list[Finished]]:
    """The runs of every method."""
    names = dict.fromkeys(run.method for run in runs)
    return {name: [run for run in runs if run.method == name] for name in names}


def runs_by_cell(runs: Sequence[Finished]) -> dict[str, list[Finished]]:
    """The runs of every cell of a grid, by the name of the cell, in the order of the experiment's
    file. Without a grid there is one cell, whose name is empty."""
    places = dict.fromkeys(run.place for run in sorted(runs, key=lambda run: run.position))
    return {place: [run for run in runs if run.place == place] for place in places}


def mixed(runs: Sequence[Finished]) -> bool:
    """Whether clients of one fleet have different models."""
    return any(len(set(run.models.values())) > 1 for run in runs)


def plainest(runs: Sequence[Finished], name: str = BASE) -> str:
    """The label of the runs of a method; of several settings of it, of those that are no variant.
    Empty where it was not run."""
    plain = [run for run in runs if run.config["method"]["name"] == name]
    if not plain:
        return ""
    return min(plain, key=lambda run: bool(run.config.get("variant"))).method


def scored(runs: Sequence[Finished]) -> list[Finished]:
    """The runs that were evaluated. Of a method in a cell only those with all rounds, if there are
    any: scores of different rounds have no mean."""
    evaluated = [run for run in runs if run.evaluated]
    finished = {(run.method, run.place) for run in evaluated if run.complete}
    return [run for run in evaluated if run.complete or (run.method, run.place) not in finished]


def known(runs: Sequence[Finished]) -> list[str]:
    """The test scores that every run has, with those of other views and measures
    (`metric@view`)."""
    by_run = []
    for run in scored(runs):
        keys = run.evaluated[-1].scores
        by_run.append([key.removeprefix("test.") for key in keys if key.startswith("test.")])
    if not by_run:
        return []
    return [name for name in by_run[0] if all(name in names for names in by_run)]


def metrics(runs: Sequence[Finished]) -> list[str]:
    """The test metrics that every run has, of the methods' own predictions."""
    return [name for name in known(runs) if "@" not in name]


def rows(runs: Sequence[Finished], metric: str, select: Select = "last") -> list[Row]:
    """One row per method that was evaluated, the best first. The runs must be of one cell. The
    metric chooses the round that counts for all other scores too."""
    runs = scored(runs)
    if len(runs_by_cell(runs)) > 1:
        raise CommunisError(f"compare each cell by itself: {'; '.join(runs_by_cell(runs))}")
    refuse_unknown(runs, metric)
    groups = runs_by_method(runs)
    order, _ = ranking(runs, metric, select)
    shown = in_order(runs, metric)
    return [_row(groups[name], groups[order[0]], shown, metric, select) for name in order]


def refuse_unknown(runs: Sequence[Finished], metric: str) -> None:
    """Refuses a metric that not every run has."""
    available = known(runs)
    if metric not in available:
        there = f"there are {', '.join(available)}" if available else "nothing was evaluated yet"
        raise CommunisError(f"no metric {metric!r} in these runs; {there}")


def in_order(runs: Sequence[Finished], metric: str) -> list[str]:
    """The metrics that every run has: the primary one, then the leading ones, then the others."""
    available = known(runs)
    first = [name for name in (metric, *LEADING) if name in available]
    return list(dict.fromkeys([*first, *metrics(runs)]))


def ranking(
    runs: Sequence[Finished], metric: str, select: Select
) -> tuple[list[str], Sequence[int]]:
    """The methods from best to worst, and the seeds that decide: those that all methods with a mean
    have, so that no method is judged by easier seeds. If that leaves a single seed, the methods
    with most seeds decide, and the others come after them. Where no seed is shared, each method
    counts with its own."""
    places = runs_by_cell(runs)
    scores = {
        name: by_seed(group, metric, select, places) for name, group in runs_by_method(runs).items()
    }
    means = {name: Estimate.of(own.values()) for name, own in scores.items()}
    finite = [name for name, mean in means.items() if math.isfinite(mean.mean)]
    shared = _common([scores[name] for name in finite])
    if len(shared) < 2:
        most = max((len(scores[name]) for name in finite), default=0)
        finite = [name for name in finite if len(scores[name]) == most]
        shared = _common([scores[name] for name in finite])
    if not shared:
        return ranked(means, metric), []
    first = {name: Estimate.of(scores[name][seed] for seed in shared) for name in finite}
    rest = {name: mean for name, mean in means.items() if name not in first}
    return ranked(first, metric) + ranked(rest, metric), shared


def _common(scores: Sequence[Mapping[int, float]]) -> list[int]:
    """The seeds that all methods have."""
    return sorted(set.intersection(*map(set, scores))) if scores else []


def _row(
    group: Sequence[Finished],
    best: Sequence[Finished],
    shown: Sequence[str],
    metric: str,
    select: Select,
) -> Row:
    difference = paired(group, best, metric, select)
    return Row(
        **vars(cost(group)),
        method=group[0].method,
        scores={m: estimate(group, m, select, by=metric) for m in shown},
        selected={s: estimate(group, metric, s) for s in SELECTS},
        weakest=Estimate.of(weakest(run, metric, select) for run in group),
        difference=difference,
        verdict=judge(group, best, difference, metric),
    )


def weakest(run: Finished, metric: str, select: Select) -> float:
    """The worst score of a client; NaN if any client has none."""
    scores = run.by_client(metric, select)
    worst = scores.min(skipna=False) if better(metric) > 0 else scores.max(skipna=False)
    return float(worst)


def cost(group: Sequence[Finished]) -> Cost:
    """What the runs of one method cost."""
    records = [record for run in group for record in run.records]
    senders = sum(_senders(run, record) for run in group for record in run.records) or 1
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


def _senders(run: Finished, record: RoundRecord) -> int:
    """Among how many clients the bytes of a round are divided: its cohort, or with pooled data all
    of them."""
    return len(run.clients) if run.fleet["pooled"] else len(record.cohort)


def comparable(run: Finished, other: Finished) -> bool:
    """Whether the difference of two runs is one of their methods alone. A setting that an older run
    does not have yet makes no difference."""
    return all(other.bench.get(key, value) == value for key, value in run.bench.items())


def judge(
    group: Sequence[Finished], best: Sequence[Finished], difference: Estimate, metric: str
) -> str:
    """The verdict on a method against the best one; empty for the best one, if it has a mean."""
    if group is best and math.isfinite(difference.mean):
        return ""
    theirs = {run.place: run for run in best}
    if not all(comparable(run, theirs.get(run.place, run)) for run in group):
        return NOT_COMPARABLE
    return significance(difference, metric)


def by_seed(
    runs: Sequence[Finished],
    metric: str,
    select: Select,
    everywhere: Collection[str] = (),
    by: str = "",
) -> dict[int, float]:
    """The score of a method by seed: the mean over cells, for the seeds that every cell has. The
    cells `everywhere` are required too, so that all methods are averaged over the same cells.
    by: the metric that chooses the round."""
    scores = {(run.seed, run.place): run.final(metric, select, by) for run in runs}
    return averaged(scores, everywhere)


def averaged(
    values: Mapping[tuple[int, str], float], everywhere: Collection[str] = ()
) -> dict[int, float]:
    """The means over cells of values by seed and cell, for the seeds that every cell has."""
    places = sorted({place for _, place in values} | set(everywhere))
    seeds = sorted({seed for seed, _ in values})
    complete = [seed for seed in seeds if all((seed, place) in values for place in places)]
    return {seed: fmean(values[seed, place] for place in places) for seed in complete}


def estimate(
    runs: Sequence[Finished],
    metric: str,
    select: Select,
    everywhere: Collection[str] = (),
    by: str = "",
) -> Estimate:
    """The score of a method over seeds."""
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
    scores = by_seed(group, metric, select, places)
    best_scores = by_seed(best, metric, select, places)
    shared = [seed for seed in scores if seed in best_scores]
    return Estimate.of(scores[seed] - best_scores[seed] for seed in shared)
