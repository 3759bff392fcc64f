"""Several runs at once on this machine, each in a process of its own.

A fleet is built once, in the parent, when the first of its jobs is due; the processes of its jobs
inherit it by fork and share its memory. The parent drops it before it builds the next one, so that
there are never more fleets in memory than runs at once. A process writes only into the folder of
its run, which it locks, and sends its events to the parent through a pipe. It computes with one
thread, so the bits of a run do not depend on how many go on beside it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from communis.core.errors import CommunisError
from communis.fleet.fleet import Fleet
from communis.run.backends.machine import (
    cores,
    default_start_method,
    one_thread,
    serve_parent,
    start,
)
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
from communis.run.jobs import Job, by_fleet

PATIENCE = 0.2  # seconds until a request to stop is noticed
log = logging.getLogger("communis")


def engine_for(jobs: Sequence[Job], at_once: int = 0) -> Engine:
    """Returns the engine for these jobs. at_once: the number of runs at the same time; 0: one per
    core, or per `run.workers` cores where configurations set it."""
    if not all(_forks(job) for job in jobs):
        if at_once > 1:
            log.warning(
                "one run at a time instead of %d: runs share a fleet by fork, which needs Linux, "
                'run.device = "cpu", and no other run.start_method or run.backend',
                at_once,
            )
        return InTurn()
    if not at_once:
        workers = max((job.config.run.workers for job in jobs), default=0)
        at_once = max(1, cores() // max(1, workers))
    at_once = min(at_once, len(jobs))
    return Processes(at_once) if at_once > 1 else InTurn()


def _forks(job: Job) -> bool:
    run = job.config.run
    if run.backend == "ray":  # its actors keep the cores busy, and its connection is not forked
        return False
    return default_start_method(run.device) == "fork" and run.start_method in ("", "fork")


class Processes:
    """Runs several jobs at once, the longest first. A run that sets no `run.workers` gets an equal
    share of the cores that are free when it starts."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once

    def perform(self, jobs: Sequence[Job], stop: Stop | None = None) -> Events:
        runs = _Runs(stop or Stop())
        waiting = len(jobs)
        try:
            with one_thread():  # a process that is forked beside threads of torch would hang
                for group in by_fleet(longest_first(jobs)):
                    yield from runs.until(self.at_once - 1)
                    if runs.stopping:
                        break
                    fleet = prepared(group)
                    yield group[0], Prepared(fleet)
                    for job in group:
                        yield from runs.until(self.at_once - 1)
                        if runs.stopping:
                            break
                        runs.start(job, fleet, self._workers(job, runs, waiting))
                        waiting -= 1
                    del fleet  # its processes keep what they share; the next one is built then
                yield from runs.until(0)
        except Exception as error:
            runs.refuse(error)
            yield from runs.until(0)
        finally:
            runs.end()
        if runs.error is not None:
            raise runs.error

    def _workers(self, job: Job, runs: _Runs, waiting: int) -> int:
        """Returns the number of workers of a run. waiting: the jobs that have not started, this one
        included."""
        if job.config.run.workers:
            return job.config.run.workers
        free = cores() - runs.workers
        starting = min(waiting, self.at_once - len(runs))
        return max(1, free // starting)


@dataclass
class _Process:
    """The process of a run, as its parent sees it."""

    job: Job
    workers: int
    process: Any  # multiprocessing's processes have one type per start method
    pipe: Connection
    ended: bool = False  # whether it has said how its run ended


class _Runs:
    """The runs under way."""

    def __init__(self, stop: Stop) -> None:
        self.error: Exception | None = None  # the first refusal
        self._stop = stop
        self._abandoned = False  # whether nobody asks for events any more
        self._told = False  # whether the processes know that they are to stop
        self._processes: dict[Connection, _Process] = {}

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def workers(self) -> int:
        return sum(process.workers for process in self._processes.values())

    @property
    def stopping(self) -> bool:
        return self._stop.requested or self._abandoned or self.error is not None

    def start(self, job: Job, fleet: Fleet, workers: int) -> None:
        context = multiprocessing.get_context("fork")
        ours, theirs = context.Pipe()
        # Not a daemon: those may not have workers.
        process = context.Process(target=_serve, args=(theirs, job, fleet, workers), daemon=False)
        start(process)
        theirs.close()
        self._processes[ours] = _Process(job, workers, process, ours)

    def until(self, most: int) -> Iterator[tuple[Job, Event]]:
        """Yields events until at most so many runs are left; all end if they are to stop."""
        while len(self._processes) > (0 if self.stopping else most):
            if self.stopping:
                self._tell()
            for pipe in wait(list(self._processes), timeout=PATIENCE):
                assert isinstance(pipe, Connection)
                running = self._processes[pipe]
                event = self._receive(running)
                if event is not None:
                    yield running.job, event

    def refuse(self, error: Exception) -> None:
        """Lets the runs under way finish their round, because another one is refused."""
        self.error = self.error or error

    def end(self) -> None:
        """Ends what still runs, after its round, or at once if a stop was requested before."""
        if not self._stop.requested:
            self._abandoned = True
            with suppress(KeyboardInterrupt):
                for _ in self.until(0):
                    pass
        for running in self._processes.values():
            running.process.kill()
            running.process.join()

    def _tell(self) -> None:
        if self._told:
            return
        self._told = True
        for running in self._processes.values():
            with suppress(OSError):  # it has ended
                running.pipe.send(None)

    def _receive(self, running: _Process) -> Event | None:
        """Returns the next event of a process. Forgets the process when it has ended; if it died,
        that is a failure of its run."""
        try:
            message = running.pipe.recv()
        except (EOFError, ConnectionError):
            running.process.join()
            running.pipe.close()
            del self._processes[running.pipe]
            if running.ended:
                return None
            return Failed(
                f"its process died (exit code {running.process.exitcode}); if nothing above says "
                "why, there may not be enough memory for so many runs at once"
            )
        if isinstance(message, _Refusal):
            running.ended = True
            self.refuse(CommunisError(message.why))
            return None
        assert isinstance(message, Begun | Completed | Logged | Ended | Failed)
        running.ended |= isinstance(message, Ended | Failed)
        return message


@dataclass(frozen=True)
class _Refusal:
    """What a process sends if its run cannot begin."""

    why: str


class _Asked(Stop):
    """A request of the parent to stop."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    @property
    def requested(self) -> bool:  # type: ignore[override]
        return self._pipe.poll()


class _LogToParent(logging.Handler):
    """Sends log messages of the library to the parent: only one process writes on a terminal."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "communis":
            self._pipe.send(Logged(record.levelno, record.getMessage()))


def _serve(pipe: Connection, job: Job, fleet: Fleet, workers: int) -> None:
    """Runs a job and sends its events to the parent."""
    serve_parent()
    sys.stderr = sys.__stderr__  # a live display of the parent may have replaced it
    logging.getLogger().handlers = [_LogToParent(pipe)]
    try:
        for event in events(job, fleet, workers, _Asked(pipe)):
            pipe.send(event)
    except (CommunisError, OSError) as error:
        pipe.send(_Refusal(str(error)))
    except Exception as error:
        pipe.send(failure(error))
    pipe.close()
    os._exit(0)  # without flushing what the parent had buffered for its terminal
