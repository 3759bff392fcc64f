"""How cost grows: with the number of clients, of runs in a report, and of windows in a dataset.

    python benchmarks/scale/measure.py [--clients 100 1000 10000 100000] [--runs 10 100 1000]
                                       [--data usc_had=FOLDER] [--only clients]

Every size runs in a process of its own, which prints its peak memory. Results go into scale.csv
beside this file, and scale.svg is drawn from them; what was measured before and is not measured now
stays.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
CSV = HERE / "scale.csv"
SVG = HERE / "scale.svg"
COLUMNS = ("what", "size", "measure", "value")
COHORT = 20  # clients that train in a round, and that are scored
WINDOWS = 8  # per client: two steps of two, and two each for validation and test
SHAPE = (3, 16)  # of a window
ROUNDS = 8
NAMES = 230  # pixels beside a chart for the names of its lines
STRIDES = (2.0, 1.0, 0.5, 0.25)  # seconds from one window of a dataset to the next

Row = tuple[str, int, str, float]


def peak_mb() -> float:
    """The largest resident set of this process so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if not found:
        raise SystemExit("memory is measured on Linux only")
    return int(found[1]) / 1024


def clients(count: int, scratch: Path) -> dict[str, float]:
    """A run with this many clients, of which COHORT work in a round, in one process."""
    from communis import FedAvg, Fleet, Plan, Run, Windows
    from communis.core.tasks import Classification

    rng = np.random.default_rng(0)
    total = count * WINDOWS
    x = np.lib.format.open_memmap(scratch / "x.npy", "w+", np.float32, (total, *SHAPE))
    for first in range(0, total, 1 << 16):
        part = x[first : first + (1 << 16)]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32)
    x.flush()
    x = np.load(scratch / "x.npy", mmap_mode="r")
    split = np.tile(np.array([0] * (WINDOWS - 4) + [1, 1, 2, 2], np.int8), count)
    owner = np.repeat(np.arange(count), WINDOWS)
    target = rng.integers(0, 4, total)
    before = peak_mb()
    start = time.perf_counter()
    windows = Windows({"acc": x}, target, owner, split, Classification(4))
    fleet = Fleet.of(windows, normalise="client")
    plan = Plan(rounds=ROUNDS, cohort=COHORT, eval_clients=COHORT, workers=1)
    with Run(fleet, FedAvg(batch=2), plan, folder=scratch / "run") as run:
        started = time.perf_counter() - start
        rounds = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            next(iter(run))
            rounds.append(time.perf_counter() - start)
    return {
        "start-up, s": started,
        "round, ms": 1000 * min(rounds[1:]),
        "first round, ms": 1000 * rounds[0],
        "memory beyond the imports, MB": peak_mb() - before,
    }


def runs(count: int, scratch: Path) -> dict[str, float]:
    """`communis report` of this many runs, ten methods with as many seeds as it takes."""
    home = scratch / "runs"
    for number in range(count):
        _finished(home / f"{number:05d}", f"method{number % 10}", number // 10)
    page = scratch / "report.html"
    command = [sys.executable, "-m", "communis", "report", str(home), "--output", str(page)]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return {
        "report, s": time.perf_counter() - start,
        "memory, MB": usage.ru_maxrss / 1024,
        "page, MB": page.stat().st_size / 1e6,
    }


def _finished(path: Path, method: str, seed: int) -> None:
    """A folder as a run of 20 rounds with 10 clients leaves it."""
    from communis import RoundRecord, Score
    from communis.core import disk
    from communis.exchange.messages import Link, Scored
    from communis.run.folder import RunFolder, environment

    rng = np.random.default_rng([seed, int(method.removeprefix("method"))])
    folder = RunFolder(path)
    folder.open()
    people = range(10)
    for round in range(1, 21):
        scores = [
            Scored(client, split, "acc", True, Score(metric, rng.random(), -1, 50))
            for client in people
            for split in ("val", "test")
            for metric in ("accuracy", "macro_f1")
        ]
        means = {
            f"{s}.{m}": rng.random() for s in ("val", "test") for m in ("accuracy", "macro_f1")
        }
        links = [Link(-1, client, 1000, 50) for client in people]
        record = RoundRecord(
            round, tuple(people), 1 / round, 10_000, 10_000, 500, 1.0, scores=means
        )
        folder.record(record, {"links": links, "scores": scores})
    folder.close()
    (path / "config.toml").write_text(
        f'name = "made"\nseed = {seed}\n[method]\nname = "{method}"\n[run]\nrounds = 20\n'
        '[data]\nname = "made"\n'
    )
    about = [{"id": client, "sensors": ["acc"], "parameters": 1000} for client in people]
    described = {"labels": ["a", "b"], "pooled": False, "clients": about, "notes": []}
    disk.write_json(path / "fleet.json", described)
    disk.write_json(path / "environment.json", environment())


def windows(stride: float, scratch: Path, name: str, folder: str) -> tuple[int, dict[str, float]]:
    """A dataset from its official files to windows on disk, then mapped again."""
    from communis.core.plugins import find
    from communis.core.streams import Streams

    os.environ["COMMUNIS_DATA"] = str(scratch / "home")
    source = find("data", name)(folder=folder, stride=stride)
    source.files()
    seconds = []
    for _ in range(2):
        start = time.perf_counter()
        made = source.load(Streams(0))
        seconds.append(time.perf_counter() - start)
    return len(made), {"first load, s": seconds[0], "second load, s": seconds[1]}


def measured(what: str, size: str, more: Sequence[str] = ()) -> dict[str, Any]:
    """What a process of its own found for one size."""
    command = [sys.executable, __file__, "--one", what, size, *more]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def one(what: str, size: str, more: Sequence[str]) -> None:
    """Prints what one size takes."""
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if what == "clients":
            found: dict[str, Any] = {"size": int(size), **clients(int(size), scratch)}
        elif what == "runs":
            found = {"size": int(size), **runs(int(size), scratch)}
        else:
            count, values = windows(float(size), scratch, *more)
            found = {"size": count, **values}
    print(json.dumps(found))


def known() -> list[Row]:
    """What was measured before."""
    if not CSV.exists():
        return []
    with CSV.open(newline="") as file:
        return [
            (row["what"], int(row["size"]), row["measure"], float(row["value"]))
            for row in csv.DictReader(file)
        ]


def keep(what: str, rows: Sequence[Row]) -> None:
    """Writes these rows in place of older ones of the same question, and draws all."""
    rest = [row for row in known() if row[0] != what]
    every = sorted([*rest, *rows])
    with CSV.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((w, s, m, f"{v:.4g}") for w, s, m, v in every)
    SVG.write_text(drawn(every))


def drawn(rows: Sequence[Row]) -> str:
    """One chart per question, both axes in powers of ten."""
    from communis.core.markup import element, stacked
    from communis.results.report.svg import HEIGHT, WIDTH, Curve, colour, curves

    charts = []
    for what in dict.fromkeys(row[0] for row in rows):
        own = [row for row in rows if row[0] == what]
        lines = []
        for number, measure in enumerate(dict.fromkeys(row[2] for row in own)):
            points = [(size, value) for _, size, m, value in own if m == measure and value > 0]
            x = [math.log10(size) for size, _ in points]
            y = [math.log10(value) for _, value in points]
            lines.append(Curve(measure, colour(number), x, y, y, y))
        chart = curves(lines, what, "number of them, as a power of ten", " ", powers=True)
        top = HEIGHT * len(charts)
        names = [
            element("text", line.name, x=WIDTH, y=top + 50 + 18 * n, fill=line.colour)
            for n, line in enumerate(lines)
        ]
        place = {"x": 0, "y": top, "width": WIDTH, "height": HEIGHT}
        charts.append(stacked(element("svg", chart, **place), *names))
    style = "text { font: 12px sans-serif } .title { font-weight: bold } .grid { stroke: #ddd }"
    size = {"width": WIDTH + NAMES, "height": HEIGHT * len(charts)}
    return str(
        element(
            "svg",
            element("style", style),
            element("rect", fill="white", **size),
            stacked(*charts),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {size['width']} {size['height']}",
            **size,
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    parser.add_argument("--runs", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--data", help="NAME=FOLDER: a dataset in its official files")
    parser.add_argument("--only", choices=("clients", "runs", "windows"))
    parser.add_argument("--one", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        what, size, *more = asked.one
        return one(what, size, more)
    questions: list[tuple[str, Sequence[Any], Sequence[str]]] = [
        ("clients", asked.clients, ()),
        ("runs", asked.runs, ()),
    ]
    if asked.data:
        questions.append(("windows", STRIDES, asked.data.split("=", 1)))
    for what, sizes, more in questions:
        if asked.only not in (None, what):
            continue
        rows: list[Row] = []
        for size in sizes:
            found = measured(what, str(size), more)
            count = found.pop("size")
            values = "  ".join(f"{name} {value:.3g}" for name, value in found.items())
            print(f"{what:8s} {count:>8,}  {values}", flush=True)
            rows += [(what, count, measure, value) for measure, value in found.items()]
        keep(what, rows)


if __name__ == "__main__":
    main()
