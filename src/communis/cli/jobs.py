"""Runs to be done: where they go, carrying them out with progress, and what is said at the end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import typer

from communis.cli.console import err, out, say
from communis.cli.terminal import Display, Stop, as_json, results, stop_after_round
from communis.core import memory
from communis.core.claim import LOCK, Claim
from communis.core.disk import replace_file
from communis.core.errors import CommunisError
from communis.core.plugins import nearest
from communis.core.pooled import MEAN, POOLED
from communis.core.selection import Select
from communis.core.settings import SchemaError
from communis.core.start_up import STOPPED
from communis.data.recordings.windows import Windows
from communis.fleet.fleet import Fleet
from communis.results.compare import collect, metrics
from communis.results.finished import Finished, read
from communis.results.report import page
from communis.results.wording.scores import default_metric, default_select
from communis.results.wording.warnings import warnings
from communis.run.config import Config, load, parse, usable_name
from communis.run.folder import RunFolder
from communis.run.loop import Run
from communis.run.setup import Setup


@dataclass(frozen=True)
class Job:
    """One run to be done or continued."""

    config: Config
    folder: Path
    source: str = ""  # file or preset of the configuration, for messages

    @property
    def label(self) -> str:
        cell = f"{'/'.join(self.config.cell.values())}, " if self.config.cell else ""
        return f"{cell}{self.config.label}, seed {self.config.seed}"

    @property
    def done(self) -> int:
        """How many rounds its folder has."""
        return len(RunFolder(self.folder).records())

    @property
    def finished(self) -> bool:
        """Whether there is nothing left to do, or to spend: the last round has a checkpoint."""
        folder, done = RunFolder(self.folder), self.done
        ended = folder.accounted().get("ended") == done
        return bool(done) and folder.saved() == done and (ended or self.config.run.rounds <= done)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Refusals say which run of which file they are about."""
        try:
            yield
        except CommunisError as error:
            raise self._refusal(str(error)) from None
        except Exception as error:
            if not memory.is_short(error):
                raise
            raise self._refusal(memory.SHORT) from None

    def _refusal(self, why: str) -> CommunisError:
        return SchemaError(f"{self.source or self.folder}: {self.label}: {why}")


def place(into: Path, name: str) -> Path:
    if not usable_name(name):
        raise CommunisError(f"{name!r} cannot be the name of a folder")
    return into / name


def free(folder: Path) -> Path:
    """The folder, or the first numbered one that does not exist yet."""
    taken, number = folder, 2
    while taken.exists():
        taken, number = folder.with_name(f"{folder.name}-{number}"), number + 1
    return taken


def refuse_shared(jobs: Sequence[Job]) -> None:
    """Every job must have a folder of its own."""
    taken: dict[str, Job] = {}
    for job in jobs:
        other = taken.setdefault(str(job.folder).casefold(), job)  # case matters not everywhere
        if other is not job:
            raise CommunisError(
                f"{job.folder}: the folder of both ({other.label}) and ({job.label}); rename one"
            )


def prepare(jobs: Sequence[Job], fresh: bool) -> None:
    """Earlier results of other settings are not mixed in; with `fresh` earlier results of these
    jobs are removed."""
    if fresh:
        _remove([job.folder for job in jobs if (job.folder / "config.toml").exists()])
    for job in jobs:
        path = job.folder / "config.toml"
        begun = (
            job.folder / "records.jsonl"
        ).exists()  # else it was refused before its first round
        if path.exists() and begun and not _same(path, job.config):
            raise CommunisError(
                f"{job.folder} holds results of other settings: choose another --name, "
                "or remove them with --fresh"
            )
        _refuse_unreadable(job.config)
    refuse_mixed(jobs)


def write_down(jobs: Sequence[Job]) -> None:
    """Every job's configuration is on disk, so that `resume` knows all of them."""
    for job in jobs:
        job.folder.mkdir(parents=True, exist_ok=True)
        replace_file(job.folder / "config.toml", job.config.to_toml().encode())


def _remove(paths: Sequence[Path]) -> None:
    """All of these runs, or none: if one is in use, the others stay too."""
    folders = [RunFolder(path) for path in paths]
    try:
        for folder in folders:
            folder.open()
        for folder in folders:
            folder.remove()
    finally:
        for folder in folders:
            folder.close()


@contextmanager
def claimed(home: Path) -> Iterator[None]:
    """No other process works on this comparison meanwhile. The folder of a single run has a claim
    of its own."""
    if (home / "config.toml").exists():
        yield
        return
    claim = Claim(home)
    try:
        yield
    finally:
        if [path.name for path in home.iterdir()] == [LOCK]:  # all was refused
            shutil.rmtree(home)
        claim.close()


def _refuse_unreadable(config: Config) -> None:
    """Refuses settings that a run's folder cannot hold, before anything is trained."""
    try:
        text = config.to_toml()
        same = parse(text).to_toml() == text
    except (CommunisError, ValueError, TypeError):  # what tomli_w and tomllib raise
        same = False
    if not same:
        raise CommunisError(
            "these settings do not come back as they are written, so the run could not be "
            "continued; a setting of a plug-in must be text, a number, true or false, or a list "
            "or table of these"
        )


def refuse_mixed(jobs: Sequence[Job]) -> None:
    """If something is left to do, what is done must have had the device profiles and pretrained
    weights that there are now."""
    if all(job.finished for job in jobs):
        return
    for job in jobs:
        if (
            job.done
            and read(job.folder).fleet.get("brought", {}) != job.config.fleet.external_files()
        ):
            raise CommunisError(
                f"{job.folder} holds results with other device profiles or pretrained weights than "
                "are in these files now, or from before these were kept: choose another --name, or "
                "begin anew with --fresh"
            )


def _same(path: Path, config: Config) -> bool:
    """Whether a file has these settings: those that it lacks, being older, have their defaults.
    What the grid has besides, which score to judge by and its targets change no result."""
    try:
        old = load(str(path))
    except CommunisError:
        return False
    if old.run.rounds < config.run.rounds:  # to be continued
        old = replace(old, run=replace(old.run, rounds=config.run.rounds))
    free = {key: getattr(config, key) for key in ("levels", "metric", "select", "target")}
    return replace(old, **free).to_toml() == config.to_toml()


def carry_out(jobs: Sequence[Job], home: Path, metric: str, quiet: bool, json: bool) -> None:
    """Does what is not done yet; stops after a round on Ctrl-C. What is refused before the first
    round leaves no folder."""
    total = sum(job.config.run.rounds for job in jobs)
    named = {job.config.metric for job in jobs}
    metric = metric or (named.pop() if len(named) == 1 else "")
    fleet: tuple[tuple[object, ...], Fleet] | None = None
    unwritten = list(jobs)
    with stop_after_round() as stop, Display(total, metric, json, quiet) as display:
        for job in jobs:
            if job.finished and job.config.run.rounds:
                display.begin(job.label, job.config.run.rounds)
                continue
            key = _of_fleet(job.config)
            if fleet is None or fleet[0] != key:  # methods share a seed's fleet
                with job.named():
                    fleet = key, job.config.make_fleet()
                    _refuse_metric(metric, fleet[1].windows)
                same = [j for j in jobs if _of_fleet(j.config) == key]
                _refuse_early([j for j in same if not j.finished], fleet[1])
            write_down(unwritten)
            unwritten = []
            _perform(job, fleet[1], display, stop)
            if stop.requested:
                break
        write_down(unwritten)
    if stop.requested:
        err.print(f"stopped; continue with: communis resume {home}")
        raise typer.Exit(STOPPED)


def _refuse_metric(metric: str, windows: Windows) -> None:
    """Refuses a score that the task does not have. Whether there will be one of a method's own,
    such as mean@gate, is seen at the first evaluation."""
    target = torch.as_tensor(windows.target[:1])
    blank = windows.task.scores(torch.zeros(1, windows.task.outputs), target)
    known = [score.metric for score in blank if score.label < 0]
    pooled = [name.replace(MEAN, POOLED) for name in known if name.endswith(MEAN)]
    if metric and "@" not in metric and metric not in (*known, *pooled):
        hint = nearest(metric, known)
        raise CommunisError(f"no metric {metric!r}{hint}; there are {', '.join(known)}")


def _of_fleet(config: Config) -> tuple[object, ...]:
    """What decides a fleet; runs that agree in it share theirs."""
    named = ("seed", "data", "partition", "fleet", "clock", "attack")
    return tuple(getattr(config, name) for name in named)


def _refuse_early(jobs: Sequence[Job], fleet: Fleet) -> None:
    """What cannot be run is found before anything is trained on this fleet."""
    for job in jobs:
        config, attack = job.config, job.config.attack
        with job.named():
            _refuse_unreadable(config)
            if attack.kind != "none" and 0 < config.run.rounds < attack.start:
                raise CommunisError(f"attack.start = {attack.start} is after the last round")
            Setup(
                fleet,
                config.make_method(),
                config.run,
                config.make_topology(fleet),
                config.robust.make(),
                config.privacy,
            )


def _run(config: Config, fleet: Fleet, workers: int, folder: Path) -> Run:
    return Run(
        fleet,
        config.make_method(),
        replace(config.run, workers=workers),
        folder=folder,
        config=config.to_toml(),
        topology=config.make_topology(fleet),
        rule=config.robust.make(),
        privacy=config.privacy,
    )


def _perform(job: Job, fleet: Fleet, display: Display, stop: Stop) -> None:
    config = job.config
    cores = os.cpu_count() or 1 if config.run.device == "cpu" else 1
    about = {"method": config.method_name, "seed": config.seed}
    labels = {"variant": config.variant, "cell": config.cell}
    about |= {key: value for key, value in labels.items() if value}
    with job.named():
        current = _run(config, fleet, config.run.workers or cores, job.folder)
    with current:
        display.begin(job.label, current.round)
        for record in current:
            display.record(record, config.run.rounds, **about)
            if stop.requested:
                break
        if current.spent:
            epsilon = f"{config.privacy.epsilon:g}"
            err.print(f"{job.label}: epsilon = {epsilon} is spent after round {current.round}")


def conclude(
    folders: Sequence[Path],
    home: Path,
    metric: str,
    select: Select | None,
    targets: Sequence[float],
    title: str,
    quiet: bool,
    json: bool,
) -> None:
    """What is said of finished runs, if anything was scored."""
    runs = collect(folders)
    if not metrics(runs):
        err.print(f"nothing to score: no client has test windows; records are in {home}")
        return
    show(runs, home / "report.html", metric, select, targets, title, quiet, json)


def show(
    runs: Sequence[Finished],
    path: Path,
    metric: str,
    select: Select | None,
    targets: Sequence[float],
    title: str,
    quiet: bool,
    json: bool,
) -> None:
    """Prints the table and writes the report."""
    chosen, select = metric or default_metric(runs), select or default_select(runs)
    page.write(runs, path, chosen, f"communis: {title}", select, targets)
    if json:
        found = as_json(runs, chosen, select, targets)
        return say({"event": "result", **found, "report": str(path), "warnings": warnings(runs)})
    out.print(results(runs, chosen, select, quiet, targets))
    for text in warnings(runs):
        out.print(f"\nwarning: {text}", style="yellow")
    out.print(f"\nreport: {path}")
