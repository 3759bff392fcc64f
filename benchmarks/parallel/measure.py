"""Time and memory of a comparison by the number of runs at the same time.

    python benchmarks/parallel/measure.py --jobs 1 2 [--repeats 2] [--seeds 3]

Runs the comparison of `make demo` as a command and samples the memory of all its processes. Linux.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

METHODS = ("fedavg", "fedprox", "fedper", "fedproto", "local")
PAUSE = 0.25  # seconds between two samples of memory


@dataclass(frozen=True)
class Cost:
    training: float  # seconds from the first round's start to the end of the last round
    total: float  # seconds of the whole command, start of Python and report included
    memory: int  # bytes: the most that all processes held at once, shared pages counted once


def measured(jobs: int, seeds: int, on: str, home: Path) -> Cost:
    command = [sys.executable, "-m", "communis", "compare", *METHODS, "--on", on, "--fresh"]
    command += ["--seeds", str(seeds), "--into", str(home), "--name", "t", "--jobs", str(jobs)]
    start = time.time()
    with subprocess.Popen([*command, "--quiet"], stdout=subprocess.DEVNULL) as process:
        memory = 0
        while process.poll() is None:
            memory = max(memory, _proportional(process.pid))
            time.sleep(PAUSE)
    total = time.time() - start
    if process.returncode:
        raise SystemExit(f"the command ended with exit code {process.returncode}")
    last = max(path.stat().st_mtime for path in home.rglob("records.jsonl"))
    first = min(path.stat().st_mtime for path in home.rglob("environment.json"))
    return Cost(last - first, total, memory)


def _proportional(pid: int) -> int:
    """Returns the proportional set size of a process and all that it started, in bytes."""
    size = 0
    try:
        root = psutil.Process(pid)
        family = [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return 0
    for member in family:
        try:
            lines = Path(f"/proc/{member.pid}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended
            continue
        size += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--on", default="watch")
    asked = parser.parse_args()
    print("| runs at once | training, s | command, s | peak memory, MB |")
    print("|---:|---:|---:|---:|")
    for _ in range(asked.repeats):
        for jobs in asked.jobs:
            with tempfile.TemporaryDirectory() as home:
                cost = measured(jobs, asked.seeds, asked.on, Path(home))
            row = f"{cost.training:.1f} | {cost.total:.1f} | {cost.memory / 1e6:.0f}"
            print(f"| {jobs} | {row} |", flush=True)


if __name__ == "__main__":
    main()
