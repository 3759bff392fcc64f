"""Several runs at once: the same files, whatever happens to one of them."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from communis import CommunisError, Fleet
from communis.core.claim import Claim
from communis.run.backends import machine
from communis.run.config import Config, bare
from communis.run.engine import Begun, Completed, Ended, Failed, InTurn, Logged, Prepared, Stop
from communis.run.folder import RunFolder
from communis.run.jobs import Home, Job, begun_in, comparison
from communis.run.loop import Run
from communis.run.parallel import Processes, engine_for
from tests.faults.test_power_cuts import content

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux only")

METHODS = ("fedavg", "scaffold", "local")
ROUNDS = 3


@pytest.fixture
def config() -> Config:
    data = {"name": "synthetic", "clients": 4, "windows": 12, "steps": 16, "channels": 2}
    settings = [f"run.rounds={ROUNDS}", "fleet.models=['cnn_small']"]
    return replace(bare(data, settings), compare=METHODS)


def done(jobs: list[Job], engine: InTurn | Processes) -> list[tuple[str, Any]]:
    return [(job.label, event) for job, event in engine.perform(jobs)]


def children() -> set[int]:
    """The processes of this one; other tests leave multiprocessing's own behind."""
    return {child.pid for child in psutil.Process().children()}


def contents(jobs: list[Job]) -> list[dict[str, Any]]:
    return [content(job.folder) for job in jobs]


@pytest.fixture
def whole(config: Config, tmp_path: Path) -> list[dict[str, Any]]:
    """The files of all runs, made one after the other."""
    jobs = comparison([config], 2, tmp_path / "whole", "")
    done(jobs, InTurn())
    return contents(jobs)


@pytest.mark.slow
@pytest.mark.parametrize(("at_once", "workers"), [(2, 0), (3, 2), (6, 1)])
def test_files_do_not_depend_on_the_number_of_jobs_and_workers(
    config: Config, whole: list[dict[str, Any]], tmp_path: Path, at_once: int, workers: int
) -> None:
    jobs = comparison([config], 2, tmp_path / "a", "")
    shared = [
        replace(job, config=replace(job.config, run=replace(job.config.run, workers=workers)))
        for job in jobs
    ]
    events = done(shared, Processes(at_once))
    for job in jobs:
        own = [event for label, event in events if label == job.label]
        own = [event for event in own if not isinstance(event, Prepared)]
        assert own[0] == Begun(0)
        assert [event.record.round for event in own[1:-1]] == [1, 2, 3]
        assert own[-1] == Ended(ROUNDS, spent=False)
    for made, expected in zip(contents(shared), whole, strict=True):
        made["config.toml"] = made["config.toml"].replace(
            f"workers = {workers}".encode(), b"workers = 0"
        )
        assert made == expected


def test_a_fleet_is_built_once_and_few_are_alive(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    make = Config.make_fleet

    def count(config: Config) -> Fleet:
        made.append(config.seed)
        return make(config)

    monkeypatch.setattr(Config, "make_fleet", count)
    config = replace(config, run=replace(config.run, rounds=1))
    jobs = comparison([config], 3, tmp_path, "")
    left = {seed: len(METHODS) for seed in range(3)}  # runs that have not ended, by fleet
    for job, event in Processes(2).perform(jobs):
        if isinstance(event, Ended):
            left[job.config.seed] -= 1
        if isinstance(event, Prepared):
            alive = [seed for seed in made if left[seed]]
            assert len(alive) <= 2
    assert made == [0, 1, 2]


def test_cores_that_are_left_over_become_workers(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("communis.run.parallel.cores", lambda: 8)
    opened = tmp_path / "opened"
    opened.mkdir()

    def note(job: Job, fleet: Fleet, workers: int) -> Run:
        (opened / job.config.label).write_text(str(workers))
        raise CommunisError("that is enough")

    monkeypatch.setattr(Job, "open", note)
    jobs = comparison([config], 1, tmp_path / "home", "")
    with pytest.raises(CommunisError, match="that is enough"):
        done(jobs, Processes(8))
    assert sorted(int(path.read_text()) for path in opened.iterdir()) == [2, 3, 3]


def test_a_run_that_fails_does_not_stop_the_others(
    config: Config, whole: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = comparison([config], 2, tmp_path / "a", "")
    record = RunFolder.record
    bad = jobs[1].folder

    def broken(folder: RunFolder, entry: Any, rows: Any) -> None:
        if folder.path == bad and entry.round == 2:
            raise CommunisError("an oversight")
        record(folder, entry, rows)

    for engine in (Processes(2), InTurn()):
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "record", broken)
            events = done(jobs, engine)
        failures = [(label, event.why) for label, event in events if isinstance(event, Failed)]
        assert failures == [(jobs[1].label, "an oversight")]
        assert jobs[1].done == 1
        assert all(job.finished for job in jobs if job is not jobs[1])
    done(jobs, Processes(2))
    assert contents(jobs) == whole


def test_a_checkpoint_that_cannot_be_written_does_not_stop_the_others(
    config: Config, whole: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run tries again to write it when it is closed, which was taken for a refusal."""
    jobs = comparison([config], 2, tmp_path / "a", "")
    save = RunFolder.save
    bad = jobs[1].folder

    def broken(folder: RunFolder, checkpoint: Any) -> None:
        if folder.path == bad and checkpoint.round == 1:
            raise CommunisError("an oversight")
        save(folder, checkpoint)

    for engine in (Processes(2), InTurn()):
        with monkeypatch.context() as patch:
            patch.setattr(RunFolder, "save", broken)
            events = done(jobs, engine)
        failures = [(label, event.why) for label, event in events if isinstance(event, Failed)]
        assert failures == [(jobs[1].label, "an oversight")]
        assert all(job.finished for job in jobs if job is not jobs[1])
    done(jobs, Processes(2))
    assert contents(jobs) == whole


def test_a_mistake_in_a_process_is_told_with_its_traceback(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("an oversight")

    monkeypatch.setattr(RunFolder, "record", broken)
    jobs = comparison([replace(config, compare=("fedavg", "local"))], 1, tmp_path, "")
    events = done(jobs, Processes(2))
    failures = [event for _, event in events if isinstance(event, Failed)]
    assert [event.why for event in failures] == ["ZeroDivisionError: an oversight"] * 2
    assert all(event.traceback.startswith("Traceback") for event in failures)


def test_a_process_that_is_killed_fails_its_run_only(
    config: Config, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    jobs = comparison([config], 2, tmp_path / "a", "")
    failures = []
    killed = False
    for job, event in Processes(2).perform(jobs):
        if isinstance(event, Completed) and not killed:
            killed = True
            victim = next(
                child
                for child in psutil.Process().children()
                if str(job.folder / "lock") in {file.path for file in child.open_files()}
            )
            victim.kill()
        if isinstance(event, Failed):
            failures.append((job, event.why))
    ((job, why),) = failures
    assert "its process died (exit code -9)" in why
    assert [other.finished for other in jobs] == [other is not job for other in jobs]
    done(jobs, Processes(2))
    assert contents(jobs) == whole


def test_a_refusal_stops_the_others_after_their_round(config: Config, tmp_path: Path) -> None:
    config = replace(config, run=replace(config.run, rounds=1000))
    jobs = comparison([config], 1, tmp_path, "")
    before = children()
    in_use = Claim(jobs[1].folder)  # in this process, which the forks know of
    with pytest.raises(CommunisError, match="working on it already"):
        done(jobs, Processes(2))
    in_use.close()
    assert children() == before
    for job in jobs:
        assert job.done == RunFolder(job.folder).saved() < 1000


def test_what_a_fleet_cannot_run_is_refused_before_its_jobs_begin(
    config: Config, tmp_path: Path
) -> None:
    mixed = replace(config, fleet=replace(config.fleet, models=("cnn", "cnn_small")))
    with pytest.raises(CommunisError, match="fedavg, seed 0: "):
        done(comparison([mixed], 1, tmp_path, ""), Processes(2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("way", ["asked", "closed"])
def test_runs_stop_after_their_round_and_go_on_to_the_same_files(
    config: Config, whole: list[dict[str, Any]], tmp_path: Path, way: str
) -> None:
    jobs = comparison([config], 2, tmp_path / "a", "")
    before = children()
    stop = Stop()
    ended = []
    with closing(Processes(2).perform(jobs, stop)) as events:
        for job, event in events:
            if isinstance(event, Completed):
                if way == "closed":
                    break
                stop.requested = True
            if isinstance(event, Ended):
                ended.append(job)
    assert children() == before
    assert len(ended) == (2 if way == "asked" else 0)
    assert sum(job.done for job in jobs) > 0
    assert all(RunFolder(job.folder).saved() == job.done for job in jobs)
    done(jobs, Processes(3))
    assert contents(jobs) == whole


def test_messages_of_the_library_come_from_the_parent(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def talk(job: Job, fleet: Fleet, workers: int) -> Run:
        logging.getLogger("communis").warning("of %s", job.label)
        raise CommunisError("that is enough")

    monkeypatch.setattr(Job, "open", talk)
    jobs = comparison([replace(config, compare=("fedavg", "local"))], 1, tmp_path, "")
    said = []
    with suppress(CommunisError):
        for job, event in Processes(2).perform(jobs):
            if isinstance(event, Logged):
                said.append((event.level, event.text == f"of {job.label}"))
    assert said
    assert set(said) == {(logging.WARNING, True)}


WORKS = """
import sys
from pathlib import Path
from communis.run.engine import Completed
from communis.run.jobs import begun_in
from communis.run.parallel import Processes
for job, event in Processes(2).perform(begun_in(Path(sys.argv[1]))):
    if isinstance(event, Completed):
        print(event.record.round, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_processes_end_with_a_parent_that_is_killed(
    config: Config, tmp_path: Path, workers: int
) -> None:
    config = replace(config, run=replace(config.run, rounds=10_000, workers=workers))
    Home(tmp_path).write_down(comparison([config], 1, tmp_path, ""))
    with subprocess.Popen(
        [sys.executable, "-c", WORKS, str(tmp_path)], stdout=subprocess.PIPE, env=os.environ
    ) as parent:
        assert parent.stdout is not None
        for _ in range(4):
            assert parent.stdout.readline()
        family = psutil.Process(parent.pid).children(recursive=True)
        assert len(family) == (2 if workers == 1 else 6)
        parent.kill()
        parent.wait()
        _, alive = psutil.wait_procs(family, timeout=60)
        assert not alive
    jobs = begun_in(tmp_path)
    assert sum(job.done for job in jobs) >= 4


def test_engines_fit_the_machine_and_the_configurations(
    config: Config,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("communis.run.parallel.cores", lambda: 8)

    def jobs(**run: Any) -> list[Job]:
        changed = replace(config, run=replace(config.run, **run))
        return comparison([changed], 4, tmp_path, "")

    assert engine_for(jobs()).at_once == 8
    assert engine_for(jobs(workers=3)).at_once == 2
    assert engine_for(jobs(workers=3), 5).at_once == 5
    assert engine_for(jobs(), 100).at_once == 12
    assert isinstance(engine_for(jobs(), 1), InTurn)
    assert isinstance(engine_for(jobs()[:1]), InTurn)
    assert isinstance(engine_for([]), InTurn)
    assert not caplog.records
    assert isinstance(engine_for(jobs(start_method="spawn")), InTurn)
    assert not caplog.records
    assert isinstance(engine_for(jobs(start_method="spawn"), 4), InTurn)
    assert "one run at a time instead of 4" in caplog.text


def test_only_cores_that_may_be_used_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 7})
    assert machine.cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert machine.cores() == 1


def test_nothing_waits_longer_than_a_round(config: Config, tmp_path: Path) -> None:
    """A request to stop is noticed while no event comes."""
    config = replace(config, run=replace(config.run, rounds=10_000))
    jobs = comparison([config], 1, tmp_path, "")
    stop = Stop()
    begun = 0
    start = 0.0
    for _, event in Processes(2).perform(jobs, stop):
        begun += isinstance(event, Begun)
        if begun == 2 and not stop.requested:
            start = time.monotonic()
            stop.requested = True
    assert time.monotonic() - start < 60
    assert sum(job.done for job in jobs) < 100
