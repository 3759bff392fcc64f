"""Every file of a run that was interrupted equals the uninterrupted one's, but for times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from communis import Run
from communis.exchange.messages import Answer, Ask, Backend
from communis.run.config import Config, load
from tests.faults.test_power_cuts import abandoned, content

ROUNDS = 4
SMALL = (
    "data.clients=6", "data.windows=15", "data.steps=16", "data.channels=2", "data.classes=3",
    "fleet.roles=[{modalities=['m0'],count=3},{modalities=['m0','m1','m2'],count=3}]",
    f"run.rounds={ROUNDS}", "run.workers=1", "run.eval_every=2", "method.epochs=1",
)  # fmt: skip
EXPERIMENTS: dict[str, tuple[str, ...]] = {
    "fedavg": ("method.name=fedavg",),
    "fedper, few checkpoints": ("method.name=fedper", "run.checkpoint_every=3"),
    "scaffold": ("method.name=scaffold",),
    "local, with a memory": ("method.name=local", "method.carry=true"),
    "relief on devices": (
        "method.name=relief",
        "fleet.roles=[{modalities=['m0'],count=3,device='relief-low'},"
        "{modalities=['m0','m1','m2'],count=3,device='relief-full'}]",
        "run.pairs=true",
    ),
    "fedapa": ("method.name=fedapa",),
    "comfed on a graph": ("method.name=comfed", "topology.kind=ring", "topology.loss=0.2"),
    "fedduet": ("method.name=fedduet", "fleet.models=['cnn_attention']"),
    "umeda": (
        "method.name=umeda", "method.warmup=1", "method.rank=3",
        "fleet.models=['sglt']",
    ),
    "local privacy": ("method.name=fedavg", "privacy.mode=local", "privacy.noise=0.5"),
    "central privacy": (
        "method.name=fedavg", "method.uniform=true", "privacy.mode=central",
        "privacy.noise=0.5", "privacy.adaptive=true",
    ),
    "dropout and offline": (
        "method.name=fedper", "fleet.dropout.kind=iid", "fleet.dropout.rate=0.3",
        "fleet.online.kind=iid", "fleet.online.share=0.6",
    ),
    "an attack that begins late": (
        "method.name=fedavg", "attack.kind=replay", "attack.count=2", "attack.start=2",
        "run.checkpoint_every=3",
    ),
    "pairs": ("method.name=fedprox", "run.pairs=true", "run.pairs_in=every", "run.cohort=3"),
}  # fmt: skip
SLOW = ("fedper, few checkpoints", "an attack that begins late", "relief on devices")
WORK = """
import sys
from pathlib import Path
from tests.faults.test_resume import started
with started(Path(sys.argv[1]), sys.argv[2]) as run:
    list(run)
"""


def started(folder: Path, name: str) -> Run:
    config: Config = load("synthetic", (*SMALL, *EXPERIMENTS[name]))
    fleet = config.make_fleet()
    return Run(
        fleet,
        config.make_method(),
        config.run,
        folder=folder,
        config=config.to_toml(),
        topology=config.make_topology(fleet),
        rule=config.robust.make(),
        privacy=config.privacy,
    )


class InterruptionError(Exception):
    """A mistake in somebody's code, in the middle of a round."""


@dataclass
class Breaking:
    """A backend that fails after so many answers."""

    inner: Backend
    after: int

    def perform(self, asks: Sequence[Ask]) -> Iterator[Answer]:
        for answer in self.inner.perform(asks):
            if self.after == 0:
                raise InterruptionError
            self.after -= 1
            yield answer

    def commit(self, *checkpoints: Sequence[int]) -> None:
        self.inner.commit(*checkpoints)

    def close(self) -> None:
        self.inner.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, object]]:
    """What uninterrupted runs leave, by name; made when asked for."""

    class Found(dict[str, dict[str, object]]):
        def __missing__(self, name: str) -> dict[str, object]:
            folder = tmp_path_factory.mktemp("whole")
            with started(folder, name) as run:
                list(run)
            self[name] = content(folder)
            return self[name]

    return Found()


def differing(found: dict[str, object], expected: dict[str, object]) -> list[str]:
    names = sorted({*found, *expected})
    return [name for name in names if found.get(name) != expected.get(name)]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_interrupted_after_every_round(
    name: str, tmp_path: Path, whole: dict[str, dict[str, object]]
) -> None:
    """By a process that is gone without a word, so that it saves nothing."""
    for last in range(1, ROUNDS):
        run = started(tmp_path, name)
        for record in run:
            if record.round == last:
                break
        abandoned(run)
    with started(tmp_path, name) as again:
        list(again)
    assert differing(content(tmp_path), whole[name]) == []


@pytest.mark.slow
@pytest.mark.parametrize("answers", [3, 9, 16])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_interrupted_within_a_round(
    name: str, answers: int, tmp_path: Path, whole: dict[str, dict[str, object]]
) -> None:
    run = started(tmp_path, name)
    run.backend = Breaking(run.backend, answers)
    with suppress(InterruptionError), run:
        list(run)
        pytest.fail("it was not interrupted")
    with started(tmp_path, name) as again:
        list(again)
    assert differing(content(tmp_path), whole[name]) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGKILL")
@pytest.mark.parametrize("name", SLOW)
def test_killed(name: str, tmp_path: Path, whole: dict[str, dict[str, object]]) -> None:
    """At a moment that nobody chose, after its first and after its third round."""
    for rounds in (1, 3):
        folder = tmp_path / str(rounds)
        process = subprocess.Popen([sys.executable, "-c", WORK, str(folder), name], env=os.environ)
        records = folder / "records.jsonl"
        while process.poll() is None:
            if records.exists() and len(records.read_bytes().splitlines()) >= rounds:
                break
            time.sleep(0.005)
        process.kill()
        process.wait()
        with started(folder, name) as again:
            list(again)
        assert differing(content(folder), whole[name]) == [], rounds


PRIVATE = ("local privacy", "central privacy")


@pytest.mark.parametrize("operation", ["record", "account"])
@pytest.mark.parametrize("name", PRIVATE)
@pytest.mark.parametrize("resumed", [True, False], ids=["in a new run", "in the same run"])
def test_a_round_that_fails_at_its_end_is_paid_for_once(
    name: str,
    operation: str,
    resumed: bool,
    tmp_path: Path,
    whole: dict[str, dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as on a full disk. `run.close()` writes a checkpoint of the round before."""

    def failing(*_: object) -> None:
        raise InterruptionError

    run = started(tmp_path, name)
    with suppress(InterruptionError), monkeypatch.context() as patched:
        patched.setattr(run.folder, operation, failing)
        list(run)
        pytest.fail("it was not interrupted")
    if resumed:
        run.close()
        run = started(tmp_path, name)
    with run:
        list(run)
    assert differing(content(tmp_path), whole[name]) == []


def test_ctrl_c_between_the_record_and_the_round_counts_the_round_once(
    tmp_path: Path, whole: dict[str, dict[str, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "central privacy"
    run = started(tmp_path, name)
    record = run.folder.record

    def interrupted(*args: Any) -> None:
        record(*args)
        signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(run.folder, "record", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(run)
    assert run.round == 1 == len(run.history)
    with run:
        list(run)
    assert differing(content(tmp_path), whole[name]) == []
