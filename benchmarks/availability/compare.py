"""How long partitions and missing sensors take, and a step-by-step loop for comparison.

python benchmarks/availability/compare.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from communis.core.streams import Streams
from communis.fleet.availability.draw import draw
from communis.fleet.availability.dropout import Dropout, missing_runs
from communis.fleet.partition.dirichlet import by_label

MILLION = 10**6
SEVERE = Dropout("markov", "pamap2-severe")


def chains() -> None:
    """A million steps in 100 chains with bursts of 30 and 10 steps."""
    expected = np.full(100, 30.0), np.full(100, 10.0)
    missing_runs(np.full(100, MILLION // 100), *expected, np.random.default_rng(0))


def steps() -> None:
    """The same chains, one step of one chain at a time."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        there = rng.random() < 0.75
        for draw_ in rng.random(MILLION // 100).tolist():
            there = draw_ >= 1 / 30 if there else draw_ < 1 / 10


def fleet() -> object:
    """50 clients x 6 sensors x 3 splits, each 20,000 s at 100 Hz: 1.8e9 samples."""
    rates = {f"m{i}": 100.0 for i in range(6)}
    return draw([SEVERE] * 3, [tuple(rates)] * 50, np.full((50, 3), 20_000.0), rates, Streams(0))


def labels() -> None:
    rng = np.random.default_rng(6)
    by_label(rng.integers(0, 27, MILLION), rng.integers(0, 3, MILLION), 100, 0.3, 10, rng)


def main() -> None:
    trace = draw([SEVERE] * 3, [("a",)], np.full((1, 3), 20_000.0), {"a": 100.0}, Streams(0))
    jobs: dict[str, Callable[[], object]] = {
        "chains, a million steps": chains,
        "the same step by step in Python": steps,
        "a fleet's trace, 1.8e9 samples": fleet,
        "asked at a million times": lambda: trace.missing(0, "a", 0, np.arange(MILLION) * 0.02),
        "Dirichlet, a million windows": labels,
    }
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(5):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            best[name] = min(best[name], time.perf_counter() - start)
    for name, seconds in best.items():
        print(f"{name:34} {1000 * seconds:8.1f} ms")


if __name__ == "__main__":
    main()
