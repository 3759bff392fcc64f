"""Worker processes: failures, start methods, shared memory, memory that follows the cohort."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest

from communis import Client, CommunisError, FedAvg, Plan, Run, State
from communis.exchange.messages import Ask
from communis.exchange.wire import encode
from communis.fleet.clients import FleetClients
from communis.methods.fedavg import Down, Up
from communis.models.zoo import Architecture
from communis.run.backends import inprocess
from communis.run.backends.executor import StateStore, only, subsets_of
from communis.run.backends.inprocess import InProcess, WorkerError
from tests.fleets import make, mixed_fleet


@dataclass(frozen=True)
class Clumsy(FedAvg):
    """Client 2 fails in its own code."""

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        if client.card.id == 2:
            raise ZeroDivisionError("a bug in user code")
        return super().local(client, state, down)


@dataclass(frozen=True)
class Dying(FedAvg):
    """The process of client 2 is killed, as by a lack of memory."""

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        if client.card.id == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().local(client, state, down)


def test_a_bug_in_a_client_stops_the_run_with_its_traceback() -> None:
    with (
        Run(mixed_fleet(), Clumsy(), Plan(rounds=1, workers=2)) as run,
        pytest.raises(WorkerError, match=r"client 2: Traceback(.|\n)*a bug in user code"),
    ):
        list(run)


def test_after_a_given_up_round_the_backend_still_works() -> None:
    """Answers of the round that failed must not be taken for those of the next one."""
    with Run(mixed_fleet(), Clumsy(), Plan(rounds=1, workers=2, eval_every=0)) as run:
        with pytest.raises(WorkerError):
            list(run)
        mine = run._downs((0, 1, 3, 4), run.servers, "train")
        asks = [Ask("evaluate", i, 1, -1, mine[i].data) for i in (0, 1, 3, 4)]
        answers = list(run.backend.perform(asks))
    assert [answer.client for answer in answers] == [0, 1, 3, 4]
    assert all(answer.scores for answer in answers)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGKILL")
def test_workers_end_when_their_parent_is_killed() -> None:
    code = (
        "import os, time; from communis import FedAvg, Plan, Run; from tests.fleets import *\n"
        "run = Run(mixed_fleet(), FedAvg(), Plan(rounds=1, workers=2)); list(run)\n"
        "print(*[w._process.pid for w in run.backend._pool], flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(psutil.pid_exists(pid) for pid in workers):
        time.sleep(0.1)
    assert not any(_runs(pid) for pid in workers)


HALF_A_MESSAGE = """
import multiprocessing, os, signal, struct
from communis.run.backends.inprocess import _serve
context = multiprocessing.get_context("fork")
ours, theirs = context.Pipe()
worker = context.Process(target=_serve, args=(theirs, (), ""))
worker.start()
ours.recv()
os.write(ours.fileno(), struct.pack("!i", 20_000))
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGKILL")
def test_a_worker_ends_when_its_parent_is_killed_amid_a_message() -> None:
    """Its own copy of the parent's end keeps the pipe open, so that it waits for the rest."""
    arguments = [sys.executable, "-c", HALF_A_MESSAGE]
    # Returns when the worker has closed its copy of the output, too.
    said = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == -signal.SIGKILL, said.stderr


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_a_killed_worker_is_one_refused_client() -> None:
    with Run(mixed_fleet(), Dying(), Plan(rounds=2, workers=2, eval_every=0)) as run:
        records = list(run)
    for record in records:
        ((client, reason),) = record.refused
        assert client == 2
        assert "worker process died" in reason


@pytest.mark.skipif(sys.platform == "win32", reason="another way to spawn")
@pytest.mark.parametrize("size", [1, 1 << 22])  # less and more than lies in a pipe unread
def test_a_worker_that_dies_while_it_starts_ends_the_run(size: int, monkeypatch: Any) -> None:
    resource_tracker.ensure_running()  # which is started by the same program
    monkeypatch.setattr(
        "multiprocessing.spawn._python_exe", os.fsencode(shutil.which("false") or "")
    )
    plan = Plan(rounds=1, workers=2, eval_every=0)
    backend = InProcess(FleetClients(mixed_fleet(), FedAvg()), workers=2, start_method="spawn")
    backend._job = (bytes(size),)  # type: ignore[assignment]
    with (
        Run(mixed_fleet(), FedAvg(), plan, backend=backend) as run,
        pytest.raises(CommunisError, match=r"worker process died while it started \(exit code 1\)"),
    ):
        list(run)


@pytest.mark.slow
def test_spawned_workers_give_the_same_bits() -> None:
    """Windows and macOS start workers by spawning them."""
    plan = Plan(rounds=2, workers=2, eval_every=0)
    fleet, method = mixed_fleet(), make("fedper")
    with Run(fleet, method, plan) as forked:
        list(forked)
    backend = InProcess(FleetClients(fleet, method), workers=2, start_method="spawn")
    with Run(fleet, method, plan, backend=backend) as spawned:
        list(spawned)
    assert encode(forked.server).data == encode(spawned.server).data
    assert forked.scores().equals(spawned.scores())


@pytest.mark.slow
def test_messages_through_shared_memory_give_the_same_bits(monkeypatch: Any) -> None:
    """Long messages go through files, short ones through the pipe; force each in turn."""
    results = []
    for limit in (0, 1 << 30):
        monkeypatch.setattr(inprocess, "SMALL", limit)
        with Run(mixed_fleet(), FedAvg(), Plan(rounds=2, workers=2, eval_every=0)) as run:
            list(run)
        results.append(encode(run.server).data)
    assert results[0] == results[1]


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(inprocess, "shared_memory", lambda: tmp_path)
    with Run(mixed_fleet(), FedAvg(), Plan(rounds=2, workers=2, eval_every=0)) as run:
        list(run)
        workers = [worker._process for worker in run.backend._pool]  # type: ignore[attr-defined]
        assert len(workers) == 2
    assert not list(tmp_path.iterdir())
    assert not any(process.is_alive() for process in workers)


def test_state_store_removes_half_written_files(tmp_path: Path) -> None:
    store = StateStore(tmp_path)
    store.write(3, 7, b"whole")
    (tmp_path / "000004-000007.partial").write_bytes(b"ha")
    assert store.versions() == {3: {7}}
    assert store.read(3, 7) == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["000003-000007.safetensors"]


def test_subsets() -> None:
    assert subsets_of(("a", "b"), "own") == [("a", "b")]
    assert subsets_of(("a", "b"), "each") == [("a", "b"), ("a",), ("b",)]
    assert subsets_of(("a",), "each") == [("a",)]


def test_only_masks_the_rest() -> None:
    bound = FleetClients(mixed_fleet(), FedAvg())
    client = next(bound.client(c.id, 1) for c in bound.cards if len(c.modalities) == 3)
    import torch

    batch = only(client.train.batch(torch.arange(4)), ("m1",))
    assert not batch.present["m0"].any()
    assert not batch.present["m2"].any()
    assert batch.present["m1"].any()


def test_a_run_builds_the_models_of_a_suite_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Server, clock, work and evaluation share one `FleetClients`."""
    made: list[str] = []
    build = Architecture.build

    def counted(kind: Architecture, *arguments: Any) -> Any:
        made.append(kind.name)
        return build(kind, *arguments)

    monkeypatch.setattr(Architecture, "build", counted)
    fleet = mixed_fleet()
    with Run(fleet, FedAvg(), Plan(rounds=1, workers=1)) as run:
        list(run)
    assert len(made) == len(dict.fromkeys(fleet.suites))
