"""The work of a job, estimated from its configuration alone: every machine comes to the same
estimate, without data and before anything is measured. Order and shares of jobs depend on it, and
no result does."""

from __future__ import annotations

from collections.abc import Sequence

from communis.core.errors import CommunisError
from communis.run.config import Config
from communis.run.jobs import Job, by_fleet


def cost(config: Config) -> float:
    """Returns an estimate of the work of a run: the passes of clients over their own windows, which
    are rounds x clients per round x epochs. What a pass costs (windows, FLOPs of the model) is the
    same for all methods on a fleet and is not part of it."""
    clients = config.run.size(_clients(config))
    epochs = max(1, getattr(config.make_method(), "epochs", 1))
    return float(config.run.rounds * clients * epochs)


def longest_first(jobs: Sequence[Job]) -> list[Job]:
    """Returns the jobs in the order in which they are started: the fleet with the most work left
    first, and on each fleet the job with the most work left. Jobs that share a fleet stay together,
    so that few fleets are in memory at once."""
    groups = []
    for group in by_fleet(jobs):
        work = {job.folder: _left(job) for job in group}
        group.sort(key=lambda job: -work[job.folder])
        groups.append((sum(work.values()), group))
    groups.sort(key=lambda pair: -pair[0])
    return [job for _, group in groups for job in group]


def shard_of(jobs: Sequence[Job], number: int, of: int) -> list[Job]:
    """Returns the jobs of one of several shards, in their order. The longest job goes to the shard
    with the least work so far, and so on. The shards depend on the configurations and the names of
    the folders only, not on what is done already."""
    if not 1 <= number <= of:
        raise CommunisError(f"shard {number}/{of}: expected a number from 1 to {of}, as in 1/{of}")
    work = {job.folder: cost(job.config) for job in jobs}
    loads = [0.0] * of
    own = set()
    for job in sorted(jobs, key=lambda job: (-work[job.folder], job.folder.as_posix())):
        least = loads.index(min(loads))
        loads[least] += work[job.folder]
        if least == number - 1:
            own.add(job.folder)
    return [job for job in jobs if job.folder in own]


def _left(job: Job) -> float:
    """Returns the part of a job's work that is not done."""
    rounds = job.config.run.rounds
    return cost(job.config) * (1 - job.done / rounds) if rounds else 0.0


def _clients(config: Config) -> int:
    """Returns the number of clients, as far as the configuration says; otherwise 1."""
    roles = sum(role.count for role in config.fleet.roles)
    return roles or getattr(config.make_source(), "clients", 0) or 1
