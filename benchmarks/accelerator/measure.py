"""Seconds per round on an accelerator, by the number of clients that are trained together.

    python benchmarks/accelerator/measure.py --device cuda        # or mps, or cpu

Prints rows for the table in README.md. Forty clients with four sensors train the standard network
on 256 windows each, in eight steps. The first row is this machine's processor, one client after
the other; the others say how far the model of the server is from that row's after the last round.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from communis import FedAvg, Fleet, Plan, Run, State, Streams
from communis.data.sources.synthetic import Synthetic
from communis.models.zoo import Architecture

WINDOWS = 426  # of a client, which trains on six tenths of them


@dataclass(frozen=True)
class Measured:
    first: float  # seconds of the first round, in which windows are made and moved
    seconds: float  # of the fastest of the other rounds
    model: State  # of the server, on the CPU
    megabytes: float  # the most that tensors took on the accelerator at once; NaN: not known


def measured(fleet: Fleet, device: str, together: int, rounds: int) -> Measured:
    plan = Plan(rounds=rounds + 1, device=device, together=together, workers=1, eval_every=0)
    method = FedAvg(lr=0.05, momentum=0.9, batch=32)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with Run(fleet, method, plan) as run:
        seconds = [record.seconds for record in run]
        peak = torch.cuda.max_memory_allocated() / 1e6 if device == "cuda" else float("nan")
        return Measured(seconds[0], min(seconds[1:]), run.server.w, peak)


def difference(found: State, expected: State) -> float:
    """The largest difference of a parameter, relative to the largest parameter at its path."""
    gaps = [
        (found[path] - value).abs().max() / value.abs().max() for path, value in expected.items()
    ]
    return float(torch.stack(gaps).max())


def name_of(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{device}, {processor()}"


def processor() -> str:
    """The name of the processor, as Linux says it."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def row(values: Sequence[object]) -> None:
    print(f"| {' | '.join(map(str, values))} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda", "mps"))
    parser.add_argument("--together", type=int, nargs="+", default=[1, 8, 40])
    parser.add_argument("--clients", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    source = Synthetic(
        clients=asked.clients,
        modalities=4,
        channels=3,
        classes=12,
        windows=WINDOWS,
        steps=128,
    )
    fleet = Fleet.of(source.load(Streams(0)), models=(Architecture(),))
    counts = fleet.counts[0]
    print(f"torch {torch.__version__}; {len(counts)} clients with {counts[0]} windows each")
    row(("device", "together", "round, s", "first, s", "peak, MB", "difference"))
    row(("---", "---:", "---:", "---:", "---:", "---:"))
    base = measured(fleet, "cpu", 1, asked.rounds)
    row((name_of("cpu"), 1, f"{base.seconds:.2f}", f"{base.first:.2f}", "", ""))
    for together in asked.together:
        if (asked.device, together) == ("cpu", 1):
            continue
        found = measured(fleet, asked.device, together, asked.rounds)
        seconds = f"{found.seconds:.2f}", f"{found.first:.2f}"
        peak = "" if found.megabytes != found.megabytes else f"{found.megabytes:.0f}"
        gap = f"{difference(found.model, base.model):.0e}"
        row((name_of(asked.device), together, *seconds, peak, gap))


if __name__ == "__main__":
    main()
