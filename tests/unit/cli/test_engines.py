"""The engine that a command asks for, and what is shown of a run that goes on elsewhere."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from communis import CommunisError
from communis.cli.jobs import Means
from communis.cli.terminal import Display
from communis.core.extras import EXTRAS
from communis.exchange.messages import RoundRecord
from communis.run.config import bare
from communis.run.engine import InTurn
from communis.run.jobs import Job


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(bare({"name": "synthetic", "clients": 3}, ["run.rounds=10"]), tmp_path / "run")


def test_runs_go_on_here_unless_asked(job: Job) -> None:
    assert isinstance(Means(at_once=1).of([job]), InTurn)
    with pytest.raises(CommunisError, match="add --engine ray"):
        Means(address="head:6379").of([job])


def test_without_ray_the_command_that_installs_it_is_named(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(EXTRAS, "ray", replace(EXTRAS["ray"], module="not_there_at_all"))
    with pytest.raises(CommunisError, match=r"not installed: pip install 'ray>="):
        Means(engine="ray").of([job])


def test_rounds_that_are_done_again_count_once(job: Job) -> None:
    with Display([job], "", json_lines=False, quiet=True) as display:
        display.begin(job, 0)
        for round in (1, 2, 3):
            display.record(job, _record(round))
        display.begin(job, 2)  # its node died after round 3
        for round in (3, 4):
            display.record(job, _record(round))
        assert display._done == 4


def _record(round: int) -> RoundRecord:
    return RoundRecord(round, (0,), 1.0, 10, 10, 0, 0.1)
