"""Jobs: their folders, their order, and what is refused before any is trained."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from communis import CommunisError
from communis.core.disk import LOCK
from communis.run.config import Config, bare
from communis.run.jobs import (
    Home,
    Job,
    begun_in,
    claimed,
    comparison,
    fleet_settings,
    folder_for,
    free_folder,
    prepare,
    refuse_early,
    refuse_metric,
)

SMALL = ["run.rounds=1", "run.workers=1"]


@pytest.fixture
def config() -> Config:
    data = {"name": "synthetic", "clients": 3, "windows": 12, "steps": 16}
    return replace(bare(data, SMALL), compare=("fedavg", "local", "fedavg"))


def test_jobs_of_a_comparison_share_fleets_one_after_the_other(
    config: Config, tmp_path: Path
) -> None:
    other = replace(config, cell={"H": "some"}, fleet=replace(config.fleet, models=("cnn_small",)))
    jobs = comparison([config, other], 2, tmp_path, "file.toml")
    assert [job.folder.relative_to(tmp_path).as_posix() for job in jobs] == [
        "fedavg/seed0",
        "local/seed0",
        "some/fedavg/seed0",
        "some/local/seed0",
        "fedavg/seed1",
        "local/seed1",
        "some/fedavg/seed1",
        "some/local/seed1",
    ]
    assert jobs[2].label == "some, fedavg, seed 0"
    keys = [repr(fleet_settings(job.config)) for job in jobs]
    changes = sum(before != after for before, after in pairwise(keys))
    assert changes + 1 == len(set(keys)) == 4


def test_two_jobs_never_have_one_folder(config: Config, tmp_path: Path) -> None:
    variants = {name: {"name": "fedavg"} for name in ("Mine", "mine")}
    both = replace(config, variants=variants, compare=tuple(variants))
    with pytest.raises(CommunisError, match=r"the folder of both \(Mine, seed 0\) and \(mine"):
        comparison([both], 1, tmp_path, "file.toml")


def test_folders_have_usable_and_free_names(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match="cannot be the name of a folder"):
        folder_for(tmp_path, "a/b")
    folder = folder_for(tmp_path, "a")
    assert free_folder(folder) == folder
    folder.mkdir()
    (tmp_path / "a-2").mkdir()
    assert free_folder(folder) == tmp_path / "a-3"


def test_jobs_come_back_from_their_folders(config: Config, tmp_path: Path) -> None:
    jobs = comparison([config], 2, tmp_path, "file.toml")
    Home(tmp_path).write_down(jobs)
    found = begun_in(tmp_path)
    assert [job.folder for job in found] == [job.folder for job in jobs]
    assert [job.config.to_toml() for job in found] == [job.config.to_toml() for job in jobs]
    assert not any(job.finished or job.done for job in found)
    # Refusals name the file that the settings come from.
    assert [job.source for job in found] == [str(job.folder / "config.toml") for job in jobs]


def test_a_job_goes_on_where_it_stopped_and_is_then_finished(
    config: Config, tmp_path: Path
) -> None:
    config = replace(config, run=replace(config.run, rounds=2))
    job = Job(config, tmp_path / "run")
    fleet = config.make_fleet()
    with job.open(fleet, workers=1) as run:
        next(iter(run))
    assert (job.done, job.finished) == (1, False)
    with job.open(fleet, workers=1) as run:
        assert [record.round for record in run] == [2]
    assert (job.done, job.finished) == (2, True)


def test_a_claim_leaves_no_empty_folder(config: Config, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with claimed(home):
        assert (home / LOCK).exists()
        with pytest.raises(CommunisError, match="working on it already"), claimed(home):
            pass
    assert not home.exists()
    with claimed(home):
        Home(home).write_down(comparison([config], 1, home, ""))
    assert home.exists()


def test_results_of_other_settings_are_refused_and_fresh_removes_them(
    config: Config, tmp_path: Path
) -> None:
    jobs = comparison([config], 1, tmp_path, "file.toml")
    with jobs[0].open(config.make_fleet(), workers=1) as run:
        list(run)
    prepare(jobs, fresh=False)
    changed = replace(config, method={"name": "fedavg", "lr": 0.2})
    others = comparison([changed], 1, tmp_path, "file.toml")
    with pytest.raises(CommunisError, match="holds results of other settings"):
        prepare(others, fresh=False)
    prepare(others, fresh=True)
    assert not jobs[0].folder.exists()


def test_a_lost_table_of_a_finished_run_is_refused_before_others_are_trained(
    config: Config, tmp_path: Path
) -> None:
    jobs = comparison([config], 1, tmp_path, "file.toml")
    with jobs[0].open(config.make_fleet(), workers=1) as run:
        list(run)
    (jobs[0].folder / "links.arrows").unlink()
    with pytest.raises(CommunisError, match="is gone, though the record of round 1 names it"):
        prepare(jobs, fresh=False)


def test_what_cannot_run_on_a_fleet_is_refused_by_name(config: Config, tmp_path: Path) -> None:
    mixed = replace(config, fleet=replace(config.fleet, models=("cnn", "cnn_small")))
    jobs = comparison([mixed], 1, tmp_path, "file.toml")
    fleet = mixed.make_fleet()
    with pytest.raises(CommunisError, match=r"file\.toml: fedavg, seed 0: "):
        refuse_early(jobs, fleet)
    refuse_early(jobs[1:], fleet)  # local can
    assert not list(tmp_path.iterdir())
    refuse_metric("mean@gate", fleet.windows)  # a method may have it
    with pytest.raises(CommunisError, match=r"no metric .acuracy. .did you mean .accuracy."):
        refuse_metric("acuracy", fleet.windows)
