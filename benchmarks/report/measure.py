"""What the report of a long run takes: seconds of CPU time and megabytes at the peak.

    python benchmarks/report/measure.py [--rounds 1000] [--clients 100] [--folder made]

Writes a run folder as a run with two sensors, six classes and known devices would leave it, with
made numbers, evaluated in every round. Then `communis report` reads it in a process of its own;
what `communis --version` takes in another one is the baseline, for it imports the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from communis import RoundRecord, Score
from communis.core import disk
from communis.exchange.messages import Link, Noted, Scored
from communis.fleet.device import DeviceCost
from communis.run.folder import RunFolder, environment

CLASSES = 6
WINDOWS = 120  # that a client is tested on
OVERALL = ("accuracy", "macro_f1", "nll", "brier", "ece")
SUBSETS = {"acc+gyro": True, "acc": False, "gyro": False}  # whether it is all that clients own
GROUPS = ("encoders.acc", "encoders.gyro", "fusion", "head")


def scores(client: int, rng: np.random.Generator) -> list[Scored]:
    """What the evaluation of one client leaves."""
    found = []
    support = WINDOWS // CLASSES
    for split in ("val", "test"):
        for subset, own in SUBSETS.items():
            for view in ("", "@seen") if own else ("",):
                made = [Score(f"{name}{view}", rng.random(), -1, WINDOWS) for name in OVERALL]
                for name in ("hits", "said", *([] if view else ["f1"])):
                    values = rng.random(CLASSES) if name == "f1" else rng.integers(20, size=CLASSES)
                    made += [
                        Score(f"{name}{view}", float(value), label, support)
                        for label, value in enumerate(values)
                    ]
                found += [Scored(client, split, subset, own, score) for score in made]
    return found


def make(path: Path, rounds: int, clients: int) -> None:
    """A finished run."""
    rng = np.random.default_rng(0)
    folder = RunFolder(path)
    folder.open()
    for round in range(1, rounds + 1):
        scored = [score for client in range(clients) for score in scores(client, rng)]
        noted = [
            Noted(client, name, 1.0)
            for client in range(clients)
            for name in ("windows", "flops_forward", *(f"trained/{group}" for group in GROUPS))
        ]
        record = RoundRecord(
            round=round,
            cohort=tuple(range(clients)),
            loss=1 / round,
            bytes_down=100_000 * clients,
            bytes_up=100_000 * clients,
            bytes_framing=100 * clients,
            seconds=1.0,
            virtual_seconds=3.0,
            virtual_joules=5.0,
            scores={
                f"{split}.{name}": rng.random() for split in ("val", "test") for name in OVERALL
            },
        )
        rows = {
            "scores": scored,
            "log": noted,
            "links": [
                Link(*ends, 100_000, 50)
                for client in range(clients)
                for ends in ((-1, client), (client, -1))
            ],
            "clock": [DeviceCost(client, 1.0, 0.5, 0.5, 1.0, 0.05) for client in range(clients)],
        }
        folder.record(record, rows)
    folder.close()
    (path / "config.toml").write_text(
        f'name = "made"\nseed = 0\n[method]\nname = "fedavg"\n[run]\nrounds = {rounds}\n'
        '[data]\nname = "made"\n'
    )
    about = [
        {"id": client, "sensors": ["acc", "gyro"], "device": "watch", "parameters": 25_000}
        for client in range(clients)
    ]
    labels = [f"class {label}" for label in range(CLASSES)]
    disk.write_json(
        path / "fleet.json", {"labels": labels, "pooled": False, "clients": about, "notes": []}
    )
    disk.write_json(path / "environment.json", environment())


def took(*arguments: str) -> tuple[float, float]:
    """CPU seconds and peak megabytes of a command."""
    command = [sys.executable, "-m", "communis", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="where the run is made, or was made before")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = (asked.folder or Path(scratch)) / f"{asked.rounds}x{asked.clients}"
        if not run.exists():
            make(run, asked.rounds, asked.clients)
        page = Path(scratch) / "report.html"
        started, idle = took("--version")
        seconds, peak = took("report", str(run), "--output", str(page))
    print(f"imports  {started:5.1f} s  {idle:5.0f} MB")
    print(f"report   {seconds:5.1f} s  {peak:5.0f} MB  ({peak - idle:.0f} MB beyond the imports)")


if __name__ == "__main__":
    main()
