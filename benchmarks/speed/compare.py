"""communis beside the peers that are installed: compare.py [W1 W2 W3] [--repeats 2].

Every simulator runs in a process of its own, one after the other, several times over; the minimum
counts. Peers that need an environment of their own are found through $FLOWER_PYTHON and $PFL_PYTHON
(an interpreter that has flwr[simulation] or pfl[pytorch]); those that are missing are left out and
said so. $PEERS names the folder with the peers' scripts.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = Path(os.environ.get("PEERS", HERE.parents[2] / "shared" / "peers"))
MINUTES = 15  # a simulator that takes longer is left out


def commands(workload: str) -> dict[str, list[str]]:
    python = sys.executable
    found = {
        "communis": [python, str(HERE / "communis_sim.py"), workload],
        "plain loop, 1 thread": [python, str(PEERS / "plain.py"), workload, "1"],
        "plain loop, 2 threads": [python, str(PEERS / "plain.py"), workload, "2"],
    }
    for name, script, variable, module in (
        ("Flower simulation", "flower_sim.py", "FLOWER_PYTHON", "flwr"),
        ("pfl-research", "pfl_sim.py", "PFL_PYTHON", "pfl"),
    ):
        interpreter = os.environ.get(variable, python)
        probe = [interpreter, "-c", f"import {module}"]
        if subprocess.run(probe, capture_output=True, check=False).returncode:
            print(f"{name}: not installed here ({variable} names an interpreter that has it)")
            continue
        found[name] = [interpreter, str(PEERS / script), workload]
    return found


def measure(command: list[str]) -> dict[str, float] | None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=60 * MINUTES, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    rows = [line for line in done.stdout.splitlines() if line.startswith('{"simulator"')]
    if not rows:
        print(done.stderr[-2000:], file=sys.stderr)
        return None
    row: dict[str, float] = json.loads(rows[-1])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", default=["W1", "W2", "W3"])
    parser.add_argument("--repeats", type=int, default=2)
    options = parser.parse_args()
    if not (PEERS / "workload.py").exists():
        raise SystemExit(
            f"no workload.py in {PEERS}: set $PEERS to the folder of the peers' scripts"
        )
    for workload in options.workloads:
        best: dict[str, dict[str, float]] = {}
        for _ in range(options.repeats):
            for name, command in commands(workload).items():
                row = measure(command)
                if row is None:
                    print(f"{workload}  {name}: no result")
                    continue
                known = best.setdefault(name, row)
                for key in ("seconds_per_round", "startup", "first"):
                    known[key] = min(known[key], row[key])
                known["peak_mb"] = max(known["peak_mb"], row["peak_mb"])
        ours = best["communis"]["seconds_per_round"]
        for name, row in best.items():
            print(
                f"{workload}  {name:22s} {row['seconds_per_round']:8.3f} s/round"
                f"  {row['seconds_per_round'] / ours:5.2f}x communis"
                f"  first round {row['first']:6.2f} s  start-up {row['startup']:5.2f} s"
                f"  peak {row['peak_mb']:5.0f} MB",
                flush=True,
            )


if __name__ == "__main__":
    main()
