"""Runs on a Ray cluster of several nodes on this machine: the same files, whatever becomes of a
node."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from communis import Client, CommunisError, FedAvg, Fleet, Plan, Run, State
from communis.core import extras
from communis.core.claim import Claim
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.wire import flatten
from communis.fleet.attack import Attack
from communis.methods.fedavg import Down, Up
from communis.run.backends.connection import check_same, connect
from communis.run.cluster import Cluster, _Token, cluster_for
from communis.run.config import Config, bare
from communis.run.engine import Begun, Completed, Ended, Engine, InTurn, Logged, Stop
from communis.run.folder import RunFolder, environment
from communis.run.jobs import Job, comparison
from communis.run.parallel import engine_for
from tests.faults.test_power_cuts import content
from tests.fleets import make, mixed_fleet

installed = extras.EXTRAS["ray"].installed
pytestmark = [
    pytest.mark.ray,
    pytest.mark.filterwarnings("default"),  # Ray's own
    pytest.mark.skipif(sys.platform != "linux", reason="starts nodes and kills them"),
    pytest.mark.skipif(not installed, reason=f"without Ray; {extras.command('ray')}"),
]

HASTE = {  # that a node is gone is noticed within two seconds
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}
NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
METHODS = ("fedavg", "scaffold")
ROUNDS = 30
LONGEST = 240  # seconds for any test


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """Whatever waits for a node that never comes ends."""

    def over(*_: object) -> None:
        raise TimeoutError(f"a test took more than {LONGEST} seconds")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(LONGEST)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


class Nodes:
    """A head without cores, on which this process is, and two nodes with one core each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster as Raylets

        self.raylets = Raylets(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "object_store_memory": 100 << 20,
                "include_dashboard": False,
                "_system_config": HASTE,
            },
        )
        self.full()
        self.ray = connect(self.raylets.address)

    def full(self) -> None:
        """Replaces the nodes that were killed."""
        nodes = list(self.raylets.worker_nodes)
        dead = [
            node for node in nodes if any(kind == "raylet" for kind, _ in node.dead_processes())
        ]
        for node in dead:
            self.raylets.remove_node(node, allow_graceful=False)
        while len(self.raylets.worker_nodes) < 2:
            self.raylets.add_node(**NODE)

    def kill(self) -> None:
        """Kills one of the nodes with all of its processes."""
        victim = next(iter(self.raylets.worker_nodes))
        self.raylets.remove_node(victim, allow_graceful=False)

    def close(self) -> None:
        self.ray.shutdown()
        self.raylets.shutdown()


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # nodes listen on loopback only
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("PYTHONPATH", os.pathsep.join([str(Path.cwd()), *sys.path]))
        nodes = Nodes()
        yield nodes
        nodes.close()


@pytest.fixture
def nodes(cluster: Nodes) -> Nodes:
    cluster.full()
    return cluster


@pytest.fixture
def config() -> Config:
    data = {"name": "synthetic", "clients": 4, "windows": 12, "steps": 16, "channels": 2}
    settings = [f"run.rounds={ROUNDS}", "run.checkpoint_every=4", "fleet.models=['cnn_small']"]
    return replace(bare(data, settings), compare=METHODS)


def done(jobs: list[Job], engine: Engine) -> list[tuple[Job, Any]]:
    return list(engine.perform(jobs))


@pytest.fixture
def whole(config: Config, tmp_path: Path) -> list[dict[str, Any]]:
    """The files of all runs, made one after the other on this machine."""
    jobs = comparison([config], 1, tmp_path / "whole", "")
    done(jobs, InTurn())
    return [content(job.folder) for job in jobs]


def files(folder: Path, method: Any, fleet: Fleet, plan: Plan, **more: Any) -> dict[str, Any]:
    """The files of a run, but for environment.json."""
    with Run(fleet, method, plan, folder=folder, **more) as run:
        list(run)
    return content(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "actors", "attack", "privacy"),
    [
        ("scaffold", 1, Attack(), PrivacyConfig()),
        ("scaffold", 2, Attack("replay", (1,)), PrivacyConfig()),
        ("fedavg", 2, Attack("sign_flip", (0,)), PrivacyConfig(mode="local", noise=0.1)),
    ],
)
def test_the_bits_are_those_of_this_machine(
    nodes: Nodes, tmp_path: Path, method: str, actors: int, attack: Attack, privacy: PrivacyConfig
) -> None:
    fleet = replace(mixed_fleet(), attack=attack)
    plan = Plan(rounds=2, workers=actors)
    expected = files(tmp_path / "a", make(method), fleet, plan, privacy=privacy)
    remote = replace(plan, backend="ray")
    made = files(tmp_path / "b", make(method), fleet, remote, privacy=privacy)
    assert made == expected


@dataclass(frozen=True)
class Mortal(FedAvg):
    """In round 2, what client 2 runs on is killed: its process, or the node."""

    kills: str = "process"

    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        if client.card.id == 2 and client.round == 2:
            os.kill(os.getpid() if self.kills == "process" else os.getppid(), signal.SIGKILL)
            time.sleep(600)  # the process ends when it sees that its node is gone
        return super().local(client, state, down)


@pytest.mark.slow
@pytest.mark.parametrize("kills", ["process", "node"])
def test_what_dies_costs_the_round_of_its_client_and_not_the_run(nodes: Nodes, kills: str) -> None:
    plan = Plan(rounds=3, workers=2)
    with Run(mixed_fleet(), Mortal(batch=8), plan) as run:
        expected = list(run)
        server = flatten(run.server)
    method = Mortal(batch=8, kills=kills)
    with Run(mixed_fleet(), method, replace(plan, backend="ray")) as run:
        records = list(run)
        made = flatten(run.server)
    assert [client for client, _ in records[1].refused] == [2]
    assert "the node or the process of its actor died" in records[1].refused[0][1]
    assert [len(record.refused) for record in records] == [0, 1, 0]
    assert [record.loss for record in records] == [record.loss for record in expected]
    assert [record.scores for record in records] == [record.scores for record in expected]
    assert all(torch.equal(made[key], server[key]) for key in server)


@dataclass(frozen=True)
class Clumsy(FedAvg):
    def local(self, client: Client, state: State, down: Down) -> tuple[State, Up]:
        raise ZeroDivisionError("a bug in user code")


@pytest.mark.slow
def test_a_bug_in_a_client_stops_the_run_with_its_traceback(nodes: Nodes) -> None:
    with (
        Run(mixed_fleet(), Clumsy(), Plan(rounds=1, backend="ray")) as run,
        pytest.raises(CommunisError, match=r"client \d: Traceback(.|\n)*a bug in user code"),
    ):
        list(run)


def test_runs_with_this_backend_go_on_one_at_a_time(config: Config, tmp_path: Path) -> None:
    config = replace(config, run=replace(config.run, backend="ray"))
    jobs = comparison([config], 2, tmp_path, "")
    assert isinstance(engine_for(jobs), InTurn)
    with pytest.raises(CommunisError, match=r'run\.backend = "ray" spreads the clients'):
        cluster_for(jobs)


def test_backends_are_known() -> None:
    with pytest.raises(CommunisError, match='backend must be "" or "ray", got \'dask\''):
        Plan(backend="dask")  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_files_are_those_of_this_machine(
    nodes: Nodes, config: Config, whole: list[dict[str, Any]], tmp_path: Path, workers: int
) -> None:
    jobs = comparison([config], 1, tmp_path / "a", "")
    engine = cluster_for(jobs)
    assert engine.at_once == 2
    events = done(jobs, engine)
    for job, expected in zip(jobs, whole, strict=True):
        own = [event for other, event in events if other is job]
        assert Begun(0) in own
        rounds = [event.record.round for event in own if isinstance(event, Completed)]
        assert rounds == list(range(1, ROUNDS + 1))
        assert own[-1] == Ended(ROUNDS, spent=False)
        assert content(job.folder) == expected
    assert not list((tmp_path / "a").glob(".seen*"))


@pytest.mark.slow
def test_a_node_that_dies_costs_the_rounds_since_the_checkpoint(
    nodes: Nodes, config: Config, whole: list[dict[str, Any]], tmp_path: Path
) -> None:
    jobs = comparison([config], 1, tmp_path / "a", "")
    killed = False
    begun = []
    said = []
    seen: dict[str, int] = {}
    for job, event in cluster_for(jobs).perform(jobs):
        if isinstance(event, Completed):
            seen[job.label] = event.record.round
        if len(seen) == 2 and not killed:
            killed = True
            nodes.kill()
        if isinstance(event, Begun):
            begun.append((job, event.round))
        if isinstance(event, Logged) and "actor died" in event.text:
            said.append(event.text)
    assert len(said) == 1
    assert "is continued from its last checkpoint" in said[0]
    assert len(begun) == 3
    assert begun[2][1] % 4 == 0
    assert [content(job.folder) for job in jobs] == whole


@pytest.mark.slow
@pytest.mark.parametrize("way", ["asked", "closed"])
def test_runs_stop_after_their_round_and_go_on_to_the_same_files(
    nodes: Nodes, config: Config, whole: list[dict[str, Any]], tmp_path: Path, way: str
) -> None:
    jobs = comparison([config], 1, tmp_path / "a", "")
    stop = Stop()
    events = cluster_for(jobs).perform(jobs, stop)
    for _, event in events:
        if isinstance(event, Completed):
            if way == "closed":
                break
            stop.requested = True
    events.close()
    assert 0 < sum(job.done for job in jobs) < 2 * ROUNDS
    assert all(max(0, RunFolder(job.folder).saved()) == job.done for job in jobs)
    done(jobs, cluster_for(jobs))
    assert [content(job.folder) for job in jobs] == whole


@pytest.mark.slow
def test_a_refusal_stops_the_others(nodes: Nodes, config: Config, tmp_path: Path) -> None:
    jobs = comparison([config], 1, tmp_path, "")
    in_use = Claim(jobs[1].folder)
    with pytest.raises(CommunisError, match="another process is working on this run"):
        done(jobs, cluster_for(jobs))
    in_use.close()
    assert not list(tmp_path.glob(".seen*"))


@pytest.mark.slow
def test_nodes_must_see_the_folder(
    nodes: Nodes, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = comparison([config], 1, tmp_path / "a", "")
    written: Callable[[Any], _Token] = _Token.written
    monkeypatch.setattr(_Token, "written", lambda jobs: replace(written(jobs), text="other"))
    with pytest.raises(CommunisError, match=r"node .*a file system that all nodes share"):
        done(jobs, cluster_for(jobs))
    assert not any(path.is_file() for path in tmp_path.rglob("*"))


@pytest.mark.slow
def test_a_run_must_fit_on_a_node(nodes: Nodes, config: Config, tmp_path: Path) -> None:
    config = replace(config, run=replace(config.run, workers=2))
    with pytest.raises(CommunisError, match="no node of the Ray cluster has more than 1 core"):
        cluster_for(comparison([config], 1, tmp_path, ""))


def test_the_lock_of_a_process_that_still_ends_is_waited_for(tmp_path: Path) -> None:
    from threading import Timer

    from communis.run.cluster import _wait_for_lock

    claim = Claim(tmp_path / "run")
    Timer(1.0, claim.close).start()
    start = time.monotonic()
    _wait_for_lock(tmp_path / "run")
    assert time.monotonic() - start > 0.9
    Claim(tmp_path / "run").close()


def test_nodes_have_the_same_versions(caplog: pytest.LogCaptureFixture) -> None:
    about = environment()
    check_same("n1", about)
    assert not caplog.records
    check_same("n1", {**about, "torch_cpu": "ANOTHER"})
    assert "node n1 computes with torch_cpu = ANOTHER" in caplog.text
    older = {**about, "versions": {**about["versions"], "torch": "1.0"}}
    with pytest.raises(CommunisError, match=r"node n1 has torch 1\.0, and this one has"):
        check_same("n1", older)


def test_no_cluster_is_needed_for_nothing() -> None:
    assert isinstance(cluster_for([]), InTurn)
    assert not isinstance(cluster_for([]), Cluster)


def test_rays_client_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(CommunisError, match="Ray's client is not supported"):
        connect("ray://head:10001")
