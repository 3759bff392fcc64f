"""How long it takes from official files to windows, against reading the bytes alone.

    python benchmarks/windows/compare.py usc_had=FOLDER dsads=FOLDER

Each step is the minimum of several runs, interleaved. `bytes`: reading every file and nothing else.
`parse`: official files to recordings. `first`: parse, cut, write, map. `again`: the second run.
`cut`: parsed recordings to windows; `loop`: the same window by window in Python, without looking
for NaN. `cut/10`, `loop/10`: with ten times as many windows, each shifted by a tenth.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from communis.core.plugins import find
from communis.core.streams import Streams
from communis.data.recordings.cut import Cut, pieces
from communis.data.recordings.recording import Dataset, Stream

REPEATS = 5


def timed(job: Callable[[], object]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def loop(dataset: Dataset, seconds: float, stride: float) -> list[np.ndarray]:
    """The plain way: one slice per window and modality."""
    found = []
    for recording in dataset.recordings:
        for k in range(int((recording.seconds - seconds) / stride + 1e-9) + 1):
            for stream in recording.streams.values():
                first = int(k * stride * stream.rate + 0.5)
                window = stream.values[first : first + int(seconds * stream.rate)]
                if isinstance(recording.target, Stream):
                    np.bincount(recording.target.values[first : first + len(window)] + 1).argmax()
                found.append(np.ascontiguousarray(window.T, np.float32))
    return found


def measure(name: str, folder: str) -> None:
    source = find("data", name)(folder=folder)
    paths = source.sources()
    parsed = source.open()
    memory = Dataset(list(parsed.recordings), parsed.task, parsed.labels, parsed.units)
    how = Cut(source.window, source.stride, source.rate)
    tenth = Cut(source.window, source.window / 10)
    best: dict[str, float] = {}
    for _ in range(REPEATS):
        with tempfile.TemporaryDirectory() as home:
            os.environ["COMMUNIS_DATA"] = home
            jobs: dict[str, Callable[[], object]] = {
                "bytes": lambda: [Path(p).read_bytes() for p in paths],
                "parse": lambda: list(source.open().recordings),
                "cut": lambda: list(pieces(memory, how)),
                "loop": lambda: loop(memory, source.window, source.window),
                "cut/10": lambda: list(pieces(memory, tenth)),
                "loop/10": lambda: loop(memory, source.window, source.window / 10),
                "first": lambda: source.load(Streams(0)),
                "again": lambda: source.load(Streams(0)),
            }
            for step, job in jobs.items():
                best[step] = min(best.get(step, float("inf")), timed(job))
    size = sum(p.stat().st_size for p in paths) / 1e6
    line = "  ".join(f"{step} {seconds:.3f} s" for step, seconds in best.items())
    print(f"{name} ({len(paths)} files, {size:.0f} MB): {line}", flush=True)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        measure(*argument.split("=", 1))
