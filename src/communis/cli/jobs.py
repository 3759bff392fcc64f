"""Runs of the command line: they are carried out with progress, and their results are shown."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from communis.cli.console import LONGEST, err, mistake, out, say
from communis.cli.terminal import Display, as_json, results, stop_after_round
from communis.core.errors import CommunisError, readable
from communis.core.selection import Select
from communis.results.compare import collect, metrics
from communis.results.finished import Finished
from communis.results.report import page
from communis.results.wording.scores import default_metric, default_select
from communis.results.wording.warnings import warnings
from communis.run.cluster import cluster_for
from communis.run.engine import Begun, Completed, Ended, Engine, Event, Failed, Logged, Prepared
from communis.run.jobs import Home, Job, refuse_metric
from communis.run.parallel import engine_for

EngineName = Literal["local", "ray"]


@dataclass(frozen=True)
class View:
    """What is shown of runs, while they go on and of their results."""

    title: str = ""  # of the report
    metric: str = ""  # the score that ranks methods; empty: as the configurations say
    select: Select | None = None  # the round that counts; None: as the configurations say
    targets: Sequence[float] = ()  # scores until which costs are counted; see `results.timing`
    quiet: bool = False  # the result only
    json: bool = False  # one JSON object per line


@dataclass(frozen=True)
class Means:
    """What runs are carried out with."""

    at_once: int = 0  # runs at the same time; 0: one per core
    engine: EngineName = "local"
    address: str = ""  # of the Ray cluster

    def of(self, jobs: Sequence[Job]) -> Engine:
        """Returns the engine for these jobs."""
        if self.engine == "ray":
            return cluster_for(jobs, self.at_once, self.address)
        if self.address:
            raise CommunisError("--address is that of a Ray cluster: add --engine ray")
        return engine_for(jobs, self.at_once)


def carry_out(jobs: Sequence[Job], home: Home, view: View, means: Means | None = None) -> bool:
    """Runs the jobs that are not finished; without `means` one after the other. Returns False if
    Ctrl-C stopped them after a round. What is refused before the first round leaves no folder. A
    run that fails later does not keep the others from going on."""
    left = [job for job in jobs if not (job.finished and job.config.run.rounds)]
    begun = {job.folder for job in left}
    means = means or Means(at_once=1)
    engine = means.of(left)
    metric = view.metric or _common_metric(jobs)
    written = False
    failed: list[Job] = []
    why = ""
    with (
        stop_after_round() as stop,
        Display(jobs, metric, view.json, view.quiet, engine.at_once) as display,
        closing(engine.perform(left, stop)) as events,
    ):
        for job in jobs:
            if job.folder not in begun:
                display.skip(job)
        for job, event in events:
            if isinstance(event, Prepared):
                refuse_metric(metric, event.fleet.windows)
                if not written:
                    home.write_down(jobs)
                written = True
            elif isinstance(event, Failed):
                failed.append(job)
                why = mistake(event.why, event.traceback) if event.traceback else event.why
                if len(jobs) > 1:
                    err.print(readable(f"{job.label}: {why}", LONGEST), style="red")
            _show(job, event, display)
        if not written:
            home.write_down(jobs)
    if stop.requested:
        shard = f" --shard {home.shard}" if home.shard else ""
        ray = " --engine ray" if means.engine == "ray" else ""
        err.print(f"stopped; continue with: communis resume {home.path}{shard}{ray}")
    if failed and len(jobs) == 1:
        raise CommunisError(why)
    if failed:
        labels = "; ".join(job.label for job in failed)
        raise CommunisError(
            f"{len(failed)} of {len(jobs)} runs failed ({labels}), for the reasons above; what is "
            "done is kept, and the same command continues"
        )
    return not stop.requested


def _common_metric(jobs: Sequence[Job]) -> str:
    """Returns the metric of the configurations; empty if they differ."""
    metrics_of_jobs = {job.config.metric for job in jobs}
    return metrics_of_jobs.pop() if len(metrics_of_jobs) == 1 else ""


def _show(job: Job, event: Event, display: Display) -> None:
    """Shows an event of a run."""
    match event:
        case Begun(round):
            display.begin(job, round)
        case Completed(record):
            display.record(job, record)
        case Logged(level, text):
            logging.getLogger("communis").log(level, text)
        case Ended(round, spent):
            display.end(job)
            if spent:
                epsilon = f"{job.config.privacy.epsilon:g}"
                err.print(f"{job.label}: epsilon = {epsilon} is spent after round {round}")
        case Failed():
            display.end(job)


def conclude(jobs: Sequence[Job], home: Home, view: View) -> None:
    """Shows the results of finished runs, and writes their report, if anything was scored. A shard
    shows its own runs."""
    if home.shard:
        err.print(
            f"shard {home.shard}: {len(jobs)} of {len(home.planned)} runs; when all shards are "
            f"done, show them together with: communis report {home.path}"
        )
        if not jobs:
            return
    runs = collect([job.folder for job in jobs])
    if not metrics(runs):
        err.print(f"nothing to score: no client has test windows; records are in {home.path}")
        return
    name = f"report-{home.shard.replace('/', '-of-')}.html" if home.shard else "report.html"
    show(runs, home.path / name, view)


def show(runs: Sequence[Finished], path: Path, view: View) -> None:
    """Prints the table and writes the report."""
    metric = view.metric or default_metric(runs)
    select = view.select or default_select(runs)
    page.write(runs, path, metric, f"communis: {view.title}", select, view.targets)
    if view.json:
        numbers = as_json(runs, metric, select, view.targets)
        return say({"event": "result", **numbers, "report": str(path), "warnings": warnings(runs)})
    out.print(results(runs, metric, select, view.quiet, view.targets))
    for text in warnings(runs):
        out.print(f"\nwarning: {text}", style="yellow")
    out.print(f"\nreport: {path}", soft_wrap=True)
