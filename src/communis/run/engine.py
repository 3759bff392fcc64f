"""Engines: they run jobs and say what happens as events.

    for job, event in InTurn().perform(jobs):
        if isinstance(event, Completed):
            print(job.label, event.record.round, event.record.loss)

`InTurn` runs one job after the other in this process; `Processes` (parallel.py) runs several at
once. Whoever wants other machines writes another engine: the same jobs, the same events.
"""

from __future__ import annotations

import traceback
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from communis.core import memory
from communis.core.errors import CommunisError
from communis.exchange.messages import RoundRecord
from communis.fleet.fleet import Fleet
from communis.run.backends.machine import cores, one_thread
from communis.run.jobs import Job, by_fleet, refuse_early


class Stop:
    """Whether all runs are to stop after the round under way."""

    requested = False


@dataclass(frozen=True)
class Prepared:
    """A fleet is there, and the jobs that share it are not refused. The job of this event is the
    first of them; none of them has begun."""

    fleet: Fleet


@dataclass(frozen=True)
class Begun:
    """A run starts, or continues after a round."""

    round: int  # the last one that was completed before; 0: none


@dataclass(frozen=True)
class Completed:
    """A round is complete and written into the run's folder."""

    record: RoundRecord


@dataclass(frozen=True)
class Logged:
    """A run logs a message."""

    level: int  # of the module `logging`
    text: str


@dataclass(frozen=True)
class Ended:
    """A run ends: all rounds are done, its privacy budget is spent, or it was asked to stop."""

    round: int
    spent: bool  # the privacy budget is spent


@dataclass(frozen=True)
class Failed:
    """A run ends with an error. Its folder holds the rounds before, and it can be continued."""

    why: str
    traceback: str = ""  # of a mistake in the program


def failure(error: Exception) -> Failed:
    """Returns the event of an unexpected error, which is being handled."""
    if memory.is_short(error):
        return Failed(memory.SHORT)
    return Failed(f"{type(error).__name__}: {error}", traceback.format_exc())


Event = Prepared | Begun | Completed | Logged | Ended | Failed
Events = Generator[tuple[Job, Event], None, None]


class Engine(Protocol):
    """Something that runs jobs."""

    @property
    def at_once(self) -> int:
        """The number of runs at the same time."""
        ...

    def perform(self, jobs: Sequence[Job], stop: Stop | None = None) -> Events:
        """Runs all jobs and yields what happens, each event with its job. Jobs that share a fleet
        follow each other.

        A run that fails does not keep the others from going on. A refusal does: what cannot be run
        is refused before its first round, the runs under way finish their round, and the refusal is
        raised. When `stop` is requested or the generator is closed, the runs under way finish their
        round too."""
        ...


class InTurn:
    """Runs one job after the other in this process, each with all cores."""

    at_once = 1

    def perform(self, jobs: Sequence[Job], stop: Stop | None = None) -> Events:
        stop = stop or Stop()
        with one_thread():  # as in the processes of `Processes`, so that sums have the same order
            for group in by_fleet(jobs):
                fleet = prepared(group)
                yield group[0], Prepared(fleet)
                for job in group:
                    for event in events(job, fleet, _all_workers(job), stop):
                        yield job, event
                    if stop.requested:
                        return
                del fleet  # before the next one is built


def prepared(group: Sequence[Job]) -> Fleet:
    """Returns the fleet that these jobs share. Refuses what cannot be run on it."""
    with group[0].named():
        fleet = group[0].config.make_fleet()
    refuse_early(group, fleet)
    return fleet


def events(job: Job, fleet: Fleet, workers: int, stop: Stop) -> Iterator[Event]:
    """Runs a job in this process and yields its events."""
    run = job.open(fleet, workers)
    try:
        with run:  # it saves its last round at the end, which may fail too
            yield Begun(run.round)
            for record in run:
                yield Completed(record)
                if stop.requested:
                    break
            ended = Ended(run.round, run.spent)
    except (CommunisError, OSError) as error:
        yield Failed(str(error))
        return
    yield ended


def _all_workers(job: Job) -> int:
    run = job.config.run
    if run.workers:
        return run.workers
    return cores() if run.device == "cpu" else 1
