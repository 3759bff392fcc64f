"""What Ray costs on one machine: its start, a round of the ray backend against processes, memory.

    python benchmarks/ray/measure.py

Both backends run the same rounds with the same number of workers; the script prints no numbers if
their results differ. Rounds alternate between them, and the fastest and the median round of
each count. Memory is the proportional set size of this process and all below it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import psutil
import torch

from communis import FedAvg, Fleet, Plan, Run, Streams
from communis.data.sources.synthetic import Synthetic
from communis.exchange.messages import RoundRecord
from communis.exchange.wire import flatten
from communis.models.zoo import Architecture
from communis.run.backends.connection import connect

ROUNDS = 20
WORKERS = 2
WORKLOADS = {  # name: clients, windows of each
    "10 clients of 20 windows": (10, 20),
    "10 clients of 400 windows": (10, 400),
}


def memory() -> float:
    """Returns the megabytes of this process and all below it."""
    found = 0
    here = psutil.Process()
    for process in [here, *here.children(recursive=True)]:
        with suppress(psutil.Error):
            found += process.memory_full_info().pss
    return found / 1e6


def timed(run: Run) -> Iterator[tuple[RoundRecord, float]]:
    """Yields each round with the seconds that it took."""
    rounds = iter(run)
    while True:
        start = time.perf_counter()
        record = next(rounds, None)
        if record is None:
            return
        yield record, time.perf_counter() - start


def measure(name: str, clients: int, windows: int) -> None:
    """Prints what a round takes with each of the backends."""
    data = Synthetic(clients=clients, windows=windows, steps=64, channels=3).load(Streams(0))
    fleet = Fleet.of(data, models=(Architecture(),))
    plan = Plan(rounds=ROUNDS, workers=WORKERS, eval_every=0)
    method = FedAvg(batch=32)
    seconds: dict[str, list[float]] = {"processes": [], "ray": []}
    with Run(fleet, method, plan) as here, Run(fleet, method, replace(plan, backend="ray")) as ray:
        pairs = zip(timed(here), timed(ray), strict=True)
        for (_, of_processes), (_, of_ray) in pairs:
            seconds["processes"].append(of_processes)
            seconds["ray"].append(of_ray)
        expected = flatten(here.server)
        made = flatten(ray.server)
        print(f"memory: {memory():.0f} MB with {WORKERS} processes and {WORKERS} actors")
        if not all(torch.equal(made[key], expected[key]) for key in expected):
            raise SystemExit("the backends differ in their results")
    print(f"| {name} | round | fastest | median | first |")
    for backend, times in seconds.items():
        first = times[0]
        rest = times[1:]
        low = min(rest) * 1e3
        middle = statistics.median(rest) * 1e3
        print(f"| {name} | {backend} | {low:.1f} ms | {middle:.1f} ms | {first:.2f} s |")


def main() -> None:
    before = memory()
    start = time.perf_counter()
    ray = connect()
    print(f"start of Ray: {time.perf_counter() - start:.1f} s")
    print(f"memory: {before:.0f} MB without, {memory():.0f} MB with Ray and no actor")
    for name, (clients, windows) in WORKLOADS.items():
        measure(name, clients, windows)
    start = time.perf_counter()
    ray.shutdown()
    print(f"end of Ray: {time.perf_counter() - start:.1f} s")


if __name__ == "__main__":
    main()
