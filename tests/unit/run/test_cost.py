"""The order and the shares of jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from communis import CommunisError
from communis.run.config import Config, bare
from communis.run.cost import cost, longest_first, shard_of
from communis.run.jobs import Job, comparison


@pytest.fixture
def config() -> Config:
    data = {"name": "synthetic", "clients": 10, "windows": 12}
    settings = ["run.rounds=8", "run.participation=0.5", "method={name='fedavg',epochs=2}"]
    variants = {"long": {"name": "fedavg", "epochs": 6}}
    compared = ("fedavg", "local", "long")
    return replace(bare(data, settings), variants=variants, compare=compared)


def test_cost_is_rounds_by_clients_by_epochs(config: Config) -> None:
    assert cost(config) == 8 * 5 * 2
    assert cost(config.under("long")) == 8 * 5 * 6
    assert cost(replace(config, run=replace(config.run, cohort=3))) == 8 * 3 * 2


def test_the_longest_job_of_the_longest_fleet_is_first(config: Config, tmp_path: Path) -> None:
    short = replace(config, cell={"H": "short"}, run=replace(config.run, rounds=2))
    short = replace(short, fleet=replace(short.fleet, models=("cnn_small",)))
    jobs = comparison([short, config], 2, tmp_path, "")
    order = [job.label for job in longest_first(jobs)]
    assert order == [
        "long, seed 0",
        "fedavg, seed 0",
        "local, seed 0",
        "long, seed 1",
        "fedavg, seed 1",
        "local, seed 1",
        "short, long, seed 0",
        "short, fedavg, seed 0",
        "short, local, seed 0",
        "short, long, seed 1",
        "short, fedavg, seed 1",
        "short, local, seed 1",
    ]


def test_what_is_done_does_not_count_for_the_order(config: Config, tmp_path: Path) -> None:
    config = replace(config, compare=("fedavg", "local"), run=replace(config.run, rounds=2))
    jobs = comparison([config], 1, tmp_path, "")
    with jobs[0].open(config.make_fleet(), workers=1) as run:
        next(iter(run))
    assert [job.label for job in longest_first(jobs)] == ["local, seed 0", "fedavg, seed 0"]


@pytest.mark.parametrize("of", [1, 2, 4, 7, 12])
def test_shards_are_disjoint_complete_and_balanced(config: Config, tmp_path: Path, of: int) -> None:
    jobs = comparison([config], 3, tmp_path, "")
    shards = [shard_of(jobs, number, of) for number in range(1, of + 1)]
    found = sorted(job.folder for shard in shards for job in shard)
    assert found == sorted(job.folder for job in jobs)
    loads = [sum(cost(job.config) for job in shard) for shard in shards]
    assert max(loads) - min(loads) <= max(cost(job.config) for job in jobs)


def test_shards_depend_neither_on_order_nor_on_what_is_done(config: Config, tmp_path: Path) -> None:
    config = replace(config, run=replace(config.run, rounds=1))
    jobs = comparison([config], 2, tmp_path, "")
    before = _folders(shard_of(jobs, 1, 3))
    assert _folders(shard_of(jobs[::-1], 1, 3)) == before
    with jobs[0].open(config.make_fleet(), workers=1) as run:
        list(run)
    assert _folders(shard_of(jobs, 1, 3)) == before


@pytest.mark.parametrize(("number", "of"), [(0, 2), (3, 2), (1, 0)])
def test_shards_that_do_not_exist_are_refused(
    config: Config, tmp_path: Path, number: int, of: int
) -> None:
    with pytest.raises(CommunisError, match="shard"):
        shard_of(comparison([config], 1, tmp_path, ""), number, of)


def _folders(jobs: list[Job]) -> list[Path]:
    return sorted(job.folder for job in jobs)
