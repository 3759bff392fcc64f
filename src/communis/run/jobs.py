"""Runs that are to be done: which folders they get, and what is refused before any is trained."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import torch

from communis.core import disk, memory
from communis.core.claim import Claim
from communis.core.disk import LOCK
from communis.core.errors import CommunisError
from communis.core.plugins import nearest
from communis.core.pooled import MEAN, POOLED
from communis.core.settings import SchemaError
from communis.data.recordings.windows import Windows
from communis.fleet.fleet import Fleet
from communis.run.config import Config, load, parse
from communis.run.early import usable_name
from communis.run.folder import RECORDS, RunFolder
from communis.run.loop import Run
from communis.run.setup import Setup


@dataclass(frozen=True)
class Job:
    """One run to be done or continued."""

    config: Config
    folder: Path
    source: str = ""  # file or preset of the configuration, for messages
    spawns: bool = False  # whether its workers are spawned even where they could be forked

    @property
    def label(self) -> str:
        cell = f"{'/'.join(self.config.cell.values())}, " if self.config.cell else ""
        return f"{cell}{self.config.label}, seed {self.config.seed}"

    @property
    def done(self) -> int:
        """The number of rounds in its folder."""
        return len(RunFolder(self.folder).records())

    @property
    def finished(self) -> bool:
        """Whether no round is left to do, or no privacy budget to spend, and the last round has a
        checkpoint."""
        folder = RunFolder(self.folder)
        done = self.done
        if not done or folder.saved() != done:
            return False
        return self.config.run.rounds <= done or folder.accounted().get("ended") == done

    @contextmanager
    def named(self) -> Iterator[None]:
        """Makes refusals name the run and its file."""
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

    def open(self, fleet: Fleet, workers: int) -> Run:
        """Returns the run in its folder, at its last checkpoint if it has one. fleet: made from
        this job's configuration, or from one with the same `fleet_settings`."""
        config = self.config
        plan = replace(config.run, workers=workers)
        if self.spawns and not plan.start_method:
            plan = replace(plan, start_method="spawn")
        with self.named():
            return Run(
                fleet,
                config.make_method(),
                plan,
                folder=self.folder,
                config=config.to_toml(),
                topology=config.make_topology(fleet),
                rule=config.robust.make(),
                privacy=config.privacy,
                metric=config.metric,
            )


def comparison(configs: Sequence[Config], seeds: int, home: Path, source: str) -> list[Job]:
    """Returns a job for each seed, configuration (a cell of a grid) and method. Jobs that share a
    fleet follow each other. The methods and the first seed are those of the first configuration."""
    base = configs[0]
    jobs = []
    for seed in range(base.seed, base.seed + seeds):
        for config in configs:
            cell = home / "-".join(config.cell.values())
            for method in dict.fromkeys(base.compare):
                run = replace(config.under(method), seed=seed)
                jobs.append(Job(run, cell / run.label / f"seed{seed}", source))
    _refuse_shared_folders(jobs)
    return jobs


def begun_in(folder: Path, changes: Sequence[str] = ()) -> list[Job]:
    """Returns the jobs whose configurations are in a folder or below it. Jobs that share a fleet
    follow each other. changes: `key=value` settings that a run may be continued with."""
    files = sorted(folder.rglob("config.toml"))
    jobs = [Job(load(str(file), changes), file.parent, source=str(file)) for file in files]
    for file, job in zip(files, jobs, strict=True):
        if changes and not _same_settings(file, job.config):
            raise CommunisError(
                f"{file}: cannot be continued with {', '.join(changes)}: its rounds may become "
                "more, unless its privacy noise was planned for them, and another metric, select "
                "or target changes no result; for anything else begin a new run, with --from to "
                "keep what was learned"
            )
    return sorted(jobs, key=lambda job: (job.config.seed, *job.config.cell.values()))


def folder_for(into: Path, name: str) -> Path:
    if not usable_name(name):
        raise CommunisError(f"{name!r} cannot be the name of a folder")
    return into / name


def free_folder(folder: Path) -> Path:
    """Returns the folder, or the first numbered one that does not exist yet."""
    number = 2
    free = folder
    while free.exists():
        free = folder.with_name(f"{folder.name}-{number}")
        number += 1
    return free


@dataclass(frozen=True)
class Home:
    """The folder of a comparison, or of a single run."""

    path: Path
    claim: Claim | None = None  # None: a single run, whose folder has a lock of its own
    shard: str = ""  # such as 2/4: other processes, on other machines too, do the other shards
    planned: Sequence[Job] = ()  # the jobs of all shards

    def write_down(self, jobs: Sequence[Job]) -> None:
        """Writes the configuration of every job into its folder, so that `resume` finds all of
        them. Those of other shards are written only if they are missing: the other shard may be at
        work there."""
        with self.claim.turn() if self.claim else nullcontext():
            for job in jobs:
                _write_configuration(job)
            for job in self.planned:
                if not (job.folder / "config.toml").exists():
                    _write_configuration(job)


@contextmanager
def claimed(home: Path, shared: bool = False) -> Iterator[Claim | None]:
    """Locks the folder of a comparison against other processes. The folder of a single run has a
    lock of its own. shared: other shards may work in the folder at the same time."""
    if (home / "config.toml").exists():
        yield None
        return
    claim = Claim(home, shared)
    try:
        yield claim
    finally:
        only_lock = [path.name for path in home.iterdir()] == [LOCK]  # everything was refused
        if only_lock and claim.alone():
            shutil.rmtree(home)
        claim.close()


def prepare(jobs: Sequence[Job], fresh: bool) -> None:
    """Refuses folders that hold results of other settings. fresh: earlier results of these jobs
    are removed first."""
    if fresh:
        earlier = [job.folder for job in jobs if (job.folder / "config.toml").exists()]
        _refuse_lost_start(jobs, earlier)
        _remove(earlier)
    for job in jobs:
        path = job.folder / "config.toml"
        begun = (job.folder / RECORDS).exists()  # otherwise the run was refused before round 1
        if path.exists() and begun and not _same_settings(path, job.config):
            raise CommunisError(
                f"{job.folder} holds results of other settings: choose another --name, "
                "or remove them with --fresh"
            )
        _refuse_unreadable(job.config)
    refuse_changed_files(jobs)


def fleet_settings(config: Config) -> tuple[object, ...]:
    """Returns the settings that a fleet is made from. Runs that agree in them share a fleet."""
    return (
        config.seed,
        config.data,
        config.partition,
        config.fleet,
        config.clock,
        config.attack,
        config.run.newcomers,
    )


def by_fleet(jobs: Sequence[Job]) -> Iterator[list[Job]]:
    """Yields the jobs that follow each other and share a fleet."""
    for _, group in groupby(jobs, lambda job: fleet_settings(job.config)):
        yield list(group)


def refuse_changed_files(jobs: Sequence[Job]) -> None:
    """Refuses to continue if device profiles, pretrained weights, networks of the user or models to
    start from have changed since the finished rounds."""
    if all(job.finished for job in jobs):
        return
    for job in jobs:
        if not RunFolder(job.folder).complete_records():
            continue
        about = disk.read_json(job.folder / "fleet.json")
        if about.get("brought", {}) != job.config.external_files():
            raise CommunisError(
                f"{job.folder} holds results with other device profiles, pretrained weights or "
                "models in fleet.start, or another source of the networks in fleet.models, than "
                "are in these files now, or from before these were kept: choose another --name, or "
                "begin anew with --fresh"
            )


def refuse_metric(metric: str, windows: Windows) -> None:
    """Refuses a score that the task does not have. A score of a method's own, such as mean@gate,
    can be checked only at the first evaluation."""
    target = torch.as_tensor(windows.target[:1])
    blank = windows.task.scores(torch.zeros(1, windows.task.outputs), target)
    known = [score.metric for score in blank if score.label < 0]
    pooled = [name.replace(MEAN, POOLED) for name in known if name.endswith(MEAN)]
    if metric and "@" not in metric and metric not in (*known, *pooled):
        hint = nearest(metric, known)
        raise CommunisError(f"no metric {metric!r}{hint}; there are {', '.join(known)}")


def refuse_early(jobs: Sequence[Job], fleet: Fleet) -> None:
    """Refuses what cannot be run on this fleet before anything is trained on it."""
    for job in jobs:
        config = job.config
        with job.named():
            _refuse_unreadable(config)
            if config.attack.kind != "none" and 0 < config.run.rounds < config.attack.start:
                raise CommunisError(f"attack.start = {config.attack.start} is after the last round")
            Setup(
                fleet,
                config.make_method(),
                config.run,
                config.make_topology(fleet),
                config.robust.make(),
                config.privacy,
            )


def _write_configuration(job: Job) -> None:
    disk.make_folder(job.folder)
    disk.replace_file(job.folder / "config.toml", job.config.to_toml().encode())


def _refuse_shared_folders(jobs: Sequence[Job]) -> None:
    """Refuses two jobs with one folder."""
    taken: dict[str, Job] = {}
    for job in jobs:
        key = str(job.folder).casefold()  # some file systems do not distinguish case
        other = taken.setdefault(key, job)
        if other is not job:
            raise CommunisError(
                f"{job.folder}: the folder of both ({other.label}) and ({job.label}); rename one"
            )


def _refuse_unreadable(config: Config) -> None:
    """Refuses settings that would not be read back from the run's folder as they are."""
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


def _refuse_lost_start(jobs: Sequence[Job], earlier: Sequence[Path]) -> None:
    """Refuses to remove earlier results for models to start from that are among them, or that
    cannot be read."""
    gone = {folder.resolve() for folder in earlier}
    starts = {job.config.fleet.start: job for job in jobs if earlier and job.config.fleet.start}
    for start, job in starts.items():
        with job.named():
            job.config.external_files()
            if Path(start).resolve() in gone:
                raise CommunisError(
                    f"fleet.start = {start}: is among the results that --fresh removes; choose "
                    "another --name"
                )


def _remove(paths: Sequence[Path]) -> None:
    """Removes all of these runs or, if one of them is in use, none."""
    folders = [RunFolder(path) for path in paths]
    try:
        for folder in folders:
            folder.open()
        for folder in folders:
            folder.remove()
    finally:
        for folder in folders:
            folder.close()


def _same_settings(path: Path, config: Config) -> bool:
    """Returns whether a file has the settings of this configuration. Settings that an older file
    lacks have their defaults; more rounds continue a run, unless its privacy noise was planned for
    its rounds; the other levels of the grid, the score to judge by and its targets change no
    result."""
    try:
        old = load(str(path))
    except CommunisError:
        return False
    if old.run.rounds < config.run.rounds and not old.privacy.planned:
        old = replace(old, run=replace(old.run, rounds=config.run.rounds))
    old = replace(
        old,
        levels=config.levels,
        metric=config.metric,
        select=config.select,
        target=config.target,
    )
    return old.to_toml() == config.to_toml()
