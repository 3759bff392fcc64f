"""CPU seconds of `communis data init` on folders of generated files, by the number of files.

    python benchmarks/data_init/measure.py [SIZE ...] [--limit SECONDS]

Every measurement is a process of its own, which is ended when it reaches the limit.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from pathlib import Path

import numpy as np

from communis.data.own.guess import write_manifest

ROWS = 100
TRIALS = 10  # of a subject
ACTIVITIES = ("walk", "sit", "stairs up", "stairs down", "stand")


def even(folder: Path, count: int) -> None:
    """One file per subject, activity and trial; all names have the same parts."""
    for number in range(count):
        subject, trial = divmod(number, TRIALS)
        name = f"{ACTIVITIES[trial % len(ACTIVITIES)].replace(' ', '')}_{trial}.csv"
        _write(folder / f"S{subject:03d}" / name, number)


def uneven(folder: Path, count: int) -> None:
    """All files in one folder; names begin with a sensor and have three to five parts."""
    for number in range(count):
        subject, trial = divmod(number, TRIALS)
        activity = ACTIVITIES[trial % len(ACTIVITIES)].replace(" ", "_")
        _write(folder / f"accelerometer-{activity}_{subject:03d}_{trial}.csv", number)


def _write(path: Path, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(number)
    rows = np.column_stack([np.arange(ROWS) / 50, rng.normal(size=(ROWS, 3))])
    np.savetxt(path, rows, fmt="%.4f", delimiter=",", header="time,ax,ay,az", comments="")


LAYOUTS = {"even names": even, "uneven names": uneven}


def _measure(folder: Path, answers: multiprocessing.Queue[float]) -> None:
    began = time.process_time()
    write_manifest(folder, force=True)
    answers.put(time.process_time() - began)


def seconds(folder: Path, limit: float) -> str:
    """CPU seconds of one call, or that it was ended at the limit."""
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[float] = context.Queue()
    process = context.Process(target=_measure, args=(folder, answers))
    process.start()
    process.join(limit)
    if process.is_alive():
        process.terminate()
        process.join()
        return f"> {limit:g} (ended)"
    return f"{answers.get():.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sizes", nargs="*", type=int, default=[100, 300, 1000, 3700])
    parser.add_argument("--limit", type=float, default=300.0, help="wall seconds of one call")
    given = parser.parse_args()
    for layout, write in LAYOUTS.items():
        for size in given.sizes:
            with tempfile.TemporaryDirectory() as place:
                write(Path(place), size)
                print(f"{layout}, {size} files: {seconds(Path(place), given.limit)} s", flush=True)


if __name__ == "__main__":
    main()
