"""Membership inference: its measures, and a run that has learned its windows by heart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from communis.core.errors import CommunisError
from communis.core.settings import build
from communis.core.streams import Streams
from communis.results.probe.membership import (
    Losses,
    advantage,
    auc,
    caught,
    compare,
    membership,
    separation,
)
from communis.run.config import Config
from communis.run.folder import STATES, Checkpoint, RunFolder
from communis.run.loop import Run
from tests.unit.folders import write

STREAMS = Streams(0)


def test_auc() -> None:
    a, b = np.array([1.0, 2.0]), np.array([3.0, 4.0, 5.0])
    assert auc(a, b) == 1.0
    assert auc(b, a) == 0.0
    assert auc(a, a) == 0.5
    assert auc(np.array([1.0, 4.0]), b) == pytest.approx((3 + 1.5) / 6)  # one tie


def test_caught_at_few_false_alarms() -> None:
    others = np.arange(100.0)
    assert caught(np.array([-1.0, 0.5, 1.0, 50.0]), others, 0.01) == 0.5  # below 1
    assert caught(np.array([-1.0, 0.5, 9.5, 50.0]), others, 0.1) == 0.75  # below 10
    assert caught(np.array([-1.0, 0.0]), others[:50], 0.01) == 0.5  # none may be wrong: below 0
    assert caught(np.array([3.0]), others, 1.0) == 1.0


def test_advantage() -> None:
    assert advantage(np.array([0.0, 0.0, 3.0]), np.array([2.0, 2.0])) == pytest.approx(2 / 3)
    assert advantage(np.array([1.0, 1.0]), np.array([1.0, 1.0])) == 0.0


def losses(shift: float, rng: np.random.Generator, clients: int = 10, each: int = 50) -> Losses:
    """Windows of a client are alike."""
    client = np.repeat(np.arange(clients), each)
    values = shift + rng.standard_normal(clients)[client] + 0.3 * rng.standard_normal(len(client))
    return Losses(values, client)


def test_intervals_know_that_windows_of_a_client_are_alike() -> None:
    """Nothing to be found between two draws; each of ten clients is off by about 1, so the interval
    is far wider than the 0.04 that 500 independent windows would give."""
    rng = np.random.default_rng(0)
    found = separation(losses(0.0, rng), losses(0.0, rng), STREAMS)
    low, high = found.auc_interval
    assert low < 0.5 < high
    assert high - low > 0.15
    assert found.advantage_interval[0] < found.advantage < found.advantage_interval[1]
    far = separation(losses(0.0, rng), losses(4.0, rng), STREAMS)
    assert far.auc_interval[0] > 0.9
    assert separation(losses(0.0, rng), losses(0.0, rng), STREAMS) != found


def test_a_split_that_nobody_has() -> None:
    none, some = Losses(np.zeros(0), np.zeros(0, int)), losses(0.0, np.random.default_rng(1), 2, 3)
    by_split = {"train": some, "val": none, "test": some}
    assert compare(by_split, by_split, STREAMS).validation is None
    with pytest.raises(CommunisError, match="no client has test windows"):
        compare({**by_split, "test": none}, by_split, STREAMS)


def finished(folder: Path, **method: object) -> Config:
    """A small run; noise is all that could be learned."""
    table = {
        "data": {
            "name": "synthetic",
            "clients": 4,
            "windows": 30,
            "steps": 16,
            "noise": 20.0,
            "modalities": 1,
        },
        "method": {"name": "fedavg", "lr": 0.004, "optimizer": "adam", "epochs": 20, **method},
        "run": {"rounds": 4, "eval_every": 0, "workers": 1},
    }
    config: Config = build(Config, table, "")
    with Run(
        config.make_fleet(),
        config.make_method(),
        config.run,
        folder=folder,
        config=config.to_toml(),
    ) as run:
        list(run)
    return config


@pytest.mark.slow
def test_a_run_that_learned_by_heart_is_found_out_and_left_alone(tmp_path: Path) -> None:
    finished(tmp_path / "run")
    before = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()}
    told: list[tuple[int, int]] = []
    found = membership(tmp_path / "run", lambda done, of: told.append((done, of)))
    assert (found.attack.members, found.attack.others) == (4 * 18, 4 * 6)
    assert found.attack.auc > 0.65
    assert found.attack.auc_interval[0] > 0.55
    assert 0.3 < found.untrained.auc < 0.7
    assert found.validation is not None
    assert 0.25 < found.validation.auc < 0.75
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    after = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in tmp_path.rglob("*") if p.is_file()}
    assert after == before


@pytest.mark.slow
def test_private_models_are_attacked_with_their_private_part(tmp_path: Path) -> None:
    """With FedPer heads stay with clients: common parts alone would know nothing of labels."""
    finished(tmp_path / "run", name="fedper")
    assert membership(tmp_path / "run").attack.auc > 0.8


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match=r"no checkpoint\.safetensors"):
        membership(tmp_path)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    """One that could still be read, with another number in it."""
    write(tmp_path, "a", 0, {"test.accuracy": [{0: 0.5}]})
    RunFolder(tmp_path).save(Checkpoint(1, "", {STATES: torch.zeros(2, dtype=torch.int64)}))
    path = tmp_path / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x07")
    with pytest.raises(CommunisError, match=r"checkpoint\.safetensors is damaged"):
        membership(tmp_path)
