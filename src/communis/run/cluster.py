"""Several runs at once on a Ray cluster, each in an actor of its own.

Data and fleets are prepared once, by this process, and lie in the object store of every node that
needs them. An actor writes into the folder of its run, which all nodes must see under the same
path, locks it, and streams its events back. If it dies with its node, the run is continued on
another one from its last checkpoint.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from communis.core import disk, plugins
from communis.core.claim import Claim
from communis.core.errors import CommunisError
from communis.fleet.fleet import Fleet
from communis.run.backends.connection import check_same, connect
from communis.run.backends.machine import keep_freed_memory, one_thread
from communis.run.cost import longest_first
from communis.run.engine import (
    Begun,
    Completed,
    Ended,
    Engine,
    Event,
    Events,
    Failed,
    InTurn,
    Logged,
    Prepared,
    Stop,
    events,
    failure,
    prepared,
)
from communis.run.folder import environment
from communis.run.jobs import Job, by_fleet

PATIENCE = 0.2  # seconds until a request to stop is noticed
ANSWER = 60.0  # seconds within which every node must say what it sees
LOCKED = 180.0  # seconds for which a file server may keep the lock of a node that died
DEATHS = 3  # of a run's actors without a round between them, after which the run has failed
log = logging.getLogger("communis")


def cluster_for(jobs: Sequence[Job], at_once: int = 0, address: str = "") -> Engine:
    """Returns the engine that does these jobs on a Ray cluster. at_once: the number of runs at the
    same time; 0: as many as the cluster has cores, or `run.workers` cores where configurations set
    it. address: see `connect`."""
    if not jobs:
        return InTurn()
    for job in jobs:
        if job.config.run.backend == "ray":
            raise CommunisError(
                f'{job.label}: run.backend = "ray" spreads the clients of one run, --engine ray '
                "spreads runs: use one of them"
            )
    ray = connect(address)
    workers = max(_workers(job) for job in jobs)
    free = [int(node["Resources"].get("CPU", 0)) for node in _nodes(ray)]
    if workers > max(free, default=0):
        raise CommunisError(
            f"run.workers = {workers}, and no node of the Ray cluster has more than "
            f"{max(free, default=0)} cores: set run.workers to a smaller number"
        )
    most = sum(cores // workers for cores in free)
    return Cluster(ray, min(at_once or most, len(jobs)))


class Cluster:
    """Runs several jobs at once on a Ray cluster, the longest first. A run takes as many cores as
    it has workers, one if its configuration does not say."""

    def __init__(self, ray: Any, at_once: int) -> None:
        self.at_once = at_once
        self._ray = ray

    def perform(self, jobs: Sequence[Job], stop: Stop | None = None) -> Events:
        runs = _Runs(self._ray, stop or Stop())
        token = _Token.written(jobs)
        try:
            self._check_nodes(token)
            for group in by_fleet(longest_first(jobs)):
                yield from runs.until(self.at_once - 1)
                if runs.stopping:
                    break
                with one_thread():  # as in every other engine, so that sums have the same order
                    fleet = prepared(group)
                yield group[0], Prepared(fleet)
                shared = self._ray.put(fleet)
                del fleet
                for job in group:
                    yield from runs.until(self.at_once - 1)
                    if runs.stopping:
                        break
                    runs.start(_Order(job, shared, token))
                del shared  # the store drops it when the runs that share it are over
            yield from runs.until(0)
        except Exception as error:
            runs.refuse(error)
            yield from runs.until(0)
        finally:
            try:
                runs.end()
            finally:
                token.path.unlink(missing_ok=True)
        if runs.error is not None:
            raise runs.error

    def _check_nodes(self, token: _Token) -> None:
        """Refuses a cluster with a node that does not see the folders of the runs, or has other
        versions."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ask = self._ray.remote(num_cpus=0, max_retries=0)(_node_state)
        answers = []
        for node in _nodes(self._ray):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            answer = ask.options(scheduling_strategy=there).remote(token)
            answers.append((node["NodeManagerAddress"], answer))
        for address, answer in answers:
            try:
                missing, about = self._ray.get(answer, timeout=ANSWER)
            except self._ray.exceptions.RayError as error:
                raise CommunisError(
                    f"node {address} does not answer ({str(error).splitlines()[0]}); is communis "
                    "installed there?"
                ) from None
            if missing:
                raise CommunisError(f"node {address}: {missing}")
            check_same(address, about)


@dataclass(frozen=True)
class _Token:
    """A file in the folder of the runs. A node that reads it sees the same file system."""

    path: Path
    text: str
    working: Path  # the folder that relative paths of configurations refer to

    @classmethod
    def written(cls, jobs: Sequence[Job]) -> _Token:
        """Writes the file into the folder that all runs have in common, as far as it exists."""
        common = Path(os.path.commonpath([job.folder.resolve().parent for job in jobs]))
        while not common.exists():
            common = common.parent
        text = secrets.token_hex(16)
        token = cls(common / f".seen-{text}", text, Path.cwd())
        disk.write_file(token.path, text.encode())
        return token

    def missing(self) -> str:
        """Returns why this node cannot work in the folder; empty if it can."""
        try:
            same = self.path.read_text() == self.text
        except OSError:
            same = False
        if not (same and os.access(self.path.parent, os.W_OK)):
            return (
                f"{self.path.parent} is not there or not the same folder as where the command was "
                "given: runs must be in a file system that all nodes share and may write to "
                "(--into FOLDER)"
            )
        return ""


@dataclass(frozen=True)
class _Order:
    """What an actor is to do."""

    job: Job
    fleet: Any  # reference to the fleet in the object store
    token: _Token


@dataclass(eq=False)
class _Remote:
    """An actor with its run, as this process sees it."""

    order: _Order
    actor: Any
    stream: Any  # its events
    begun: bool = False
    ended: bool = False
    deaths: int = 0  # of actors of this run since its last round


class _Runs:
    """The runs under way."""

    def __init__(self, ray: Any, stop: Stop) -> None:
        self.error: Exception | None = None  # the first refusal
        self._ray = ray
        self._stop = stop
        self._abandoned = False  # whether nobody asks for events any more
        self._told = False  # whether the actors know that they are to stop
        self._remotes: list[_Remote] = []

    @property
    def stopping(self) -> bool:
        return self._stop.requested or self._abandoned or self.error is not None

    def start(self, order: _Order, deaths: int = 0) -> None:
        """Starts an actor for a run. deaths: how many actors of this run have died since its last
        round."""
        workers = _workers(order.job)
        remote = self._ray.remote(num_cpus=workers, max_concurrency=2)(_Runner)
        actor = remote.remote()
        # Workers are spawned: a process that talks to Ray must not be forked.
        job = replace(order.job, folder=order.job.folder.resolve(), spawns=True)
        run = actor.run.options(num_returns="streaming")
        stream = run.remote(job, order.fleet, workers, order.token, deaths > 0)
        self._remotes.append(_Remote(order, actor, stream, deaths=deaths))

    def until(self, most: int) -> Iterator[tuple[Job, Event]]:
        """Yields events until at most so many runs are left; all end if they are to stop."""
        while len(self._remotes) > (0 if self.stopping else most):
            if self.stopping:
                self._tell()
            by_stream = {remote.stream: remote for remote in self._remotes}
            if not by_stream:
                return
            ready, _ = self._ray.wait(
                list(by_stream), num_returns=1, timeout=PATIENCE, fetch_local=False
            )
            for stream in ready:
                remote = by_stream[stream]
                event = self._receive(remote)
                if event is not None:
                    yield remote.order.job, event

    def refuse(self, error: Exception) -> None:
        """Lets the runs under way finish their round, because another one is refused."""
        self.error = self.error or error

    def end(self) -> None:
        """Ends what still runs, after its round, or at once if a stop was requested before."""
        try:
            if not self._stop.requested:
                self._abandoned = True
                for _ in self.until(0):
                    pass
        except KeyboardInterrupt:
            pass
        for remote in list(self._remotes):
            self._forget(remote)

    def _tell(self) -> None:
        """Lets actors stop after their round. One that still waits for a core or for the lock of
        its folder has no round to finish."""
        if self._told:
            return
        self._told = True
        for remote in list(self._remotes):
            if remote.begun:
                remote.actor.stop.remote()
            else:
                self._forget(remote)

    def _receive(self, remote: _Remote) -> Event | None:
        """Returns the next event of an actor. Forgets the actor when it has ended. If it died, its
        run is given to another one."""
        try:
            message = self._ray.get(next(remote.stream))
        except StopIteration:
            self._forget(remote)
            return None if remote.ended else Failed("its actor ended without saying why")
        except self._ray.exceptions.RayTaskError as error:
            self._forget(remote)
            return Failed(str(error))
        except self._ray.exceptions.RayError as error:
            self._forget(remote)
            return None if remote.ended else self._died(remote, type(error).__name__)
        if isinstance(message, _Refusal):
            remote.ended = True
            self.refuse(CommunisError(message.why))
            return None
        assert isinstance(message, Begun | Completed | Logged | Ended | Failed)
        remote.begun |= isinstance(message, Begun)
        remote.ended |= isinstance(message, Ended | Failed)
        if isinstance(message, Completed):
            remote.deaths = 0
        return message

    def _died(self, remote: _Remote, why: str) -> Event | None:
        """Starts a run anew whose actor died, from its last checkpoint."""
        if self.stopping:
            return None
        deaths = remote.deaths + 1
        if deaths >= DEATHS:
            return Failed(
                f"its actor died {deaths} times without a round between ({why}); if nothing above "
                "says why, there may not be enough memory on the nodes"
            )
        self.start(remote.order, deaths)
        return Logged(
            logging.WARNING,
            f"{remote.order.job.label}: the node or the process of its actor died ({why}); the run "
            "is continued from its last checkpoint",
        )

    def _forget(self, remote: _Remote) -> None:
        self._ray.kill(remote.actor)
        self._remotes.remove(remote)


@dataclass(frozen=True)
class _Refusal:
    """What an actor sends if its run cannot begin."""

    why: str


class _Kept(logging.Handler):
    """Keeps log messages of the library until they are sent with the next event."""

    def __init__(self) -> None:
        super().__init__()
        self._logged: list[Logged] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._logged.append(Logged(record.levelno, record.getMessage()))

    def taken(self) -> list[Logged]:
        """Returns the messages since the last time."""
        said = self._logged
        self._logged = []
        return said


class _Runner:
    """The actor: performs one run."""

    def __init__(self) -> None:
        self._stop = Stop()

    def stop(self) -> None:
        """The run ends after its round. Called while `run` is under way, in another thread."""
        self._stop.requested = True

    def run(
        self, job: Job, fleet: Fleet, workers: int, token: _Token, again: bool
    ) -> Iterator[Event | _Refusal]:
        """Yields the events of the run. again: another actor has died at it."""
        missing = token.missing()
        if missing:
            yield _Refusal(missing)
            return
        os.chdir(token.working)
        plugins.trust()  # the configuration was read, and its plug-ins loaded, where it was trusted
        keep_freed_memory()
        if again:
            _wait_for_lock(job.folder)
        kept = _Kept()
        log.addHandler(kept)
        log.setLevel(logging.INFO)
        try:
            with one_thread():
                for event in events(job, fleet, workers, self._stop):
                    yield from kept.taken()
                    yield event
                yield from kept.taken()
        except (CommunisError, OSError) as error:
            yield _Refusal(str(error))
        except Exception as error:
            yield failure(error)


def _node_state(token: _Token) -> tuple[str, dict[str, Any]]:
    """Returns what a node lacks (empty: nothing), and what it computes with."""
    return token.missing(), environment()


def _nodes(ray: Any) -> list[dict[str, Any]]:
    """Returns the nodes that have cores."""
    return [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]


def _workers(job: Job) -> int:
    return job.config.run.workers or 1


def _wait_for_lock(folder: Path) -> None:
    """Waits until the folder of a run is free. The process that died may still end, and a file
    server keeps the locks of a node that died for a while. If it takes too long, to open the run
    says what is wrong."""
    end = time.monotonic() + LOCKED
    while time.monotonic() < end:
        try:
            Claim(folder).close()
        except CommunisError:
            time.sleep(0.5)
        else:
            return
