"""What a round costs UMEDA's server as the population grows, with forty clients in every round.

    python benchmarks/server_time/measure.py [--clients 100 500 1000 5000 10000] [--rounds 5]

Made windows, a single training step per client: the server's work does not depend on how well
clients are trained. Every population runs in a process of its own, one after the other; clients
are made when they are asked. The model is the paper's in size with one layer, so that a client is
a point of 16 x 16 numbers.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import Any, ClassVar

from communis import Fleet, Plan, Replies, Run
from communis.core.streams import Streams
from communis.data.sources.synthetic import Synthetic
from communis.methods.umeda import Server, Umeda, Up
from communis.models.zoo import architecture

PAPER = {100: 1.83, 500: 1.87, 1000: 1.92, 5000: 1.95, 10_000: 2.26}  # Table 11, seconds
COHORT = 40


@dataclass(frozen=True)
class Timed(Umeda):
    """Writes down the processor seconds of aggregations: on a busy machine they say more than those
    on the wall."""

    spent: ClassVar[list[float]] = []

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        start = time.process_time()
        server = super().aggregate(server, ups)
        self.spent.append(time.process_time() - start)
        return server


def measured(clients: int, rounds: int, consensus: Any) -> dict[str, float]:
    """Seconds of building the fleet and of aggregations, the first and a later one; megabytes."""
    start = time.perf_counter()
    data = Synthetic(clients=clients, modalities=1, windows=5, steps=16).load(Streams(0))
    model = architecture("sglt_paper").tuned({"layers": 1})
    fleet = Fleet.of(data, models=(model,))
    method = Timed(consensus=consensus, warmup=0, max_steps=1, batch=4)
    plan = Plan(rounds=rounds, cohort=COHORT, eval_every=0, eval_clients=1, workers=1)
    with Run(fleet, method, plan) as run:
        built = time.perf_counter() - start
        history = list(run)
    return {
        "built": built,
        "first": Timed.spent[0],
        "later": median(Timed.spent[1:]),
        "wall": median(record.seconds_aggregation for record in history[1:]),
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
    }


def alone(clients: int, rounds: int, consensus: str) -> dict[str, float]:
    """The same, measured in a process of its own."""
    options = ["--one", str(clients), "--rounds", str(rounds), "--consensus", consensus]
    command = [sys.executable, __file__, *options]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    row: dict[str, float] = json.loads(answer.splitlines()[-1])
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=list(PAPER))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--consensus", default="diffusion")
    parser.add_argument("--one", type=int, help="measure one population here, as JSON")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(asked.one, asked.rounds, asked.consensus)))
        return
    print("| clients | first round, CPU | later, CPU | later, wall | paper | start-up | memory |")
    print("|---|---|---|---|---|---|---|")
    for clients in asked.clients:
        row = alone(clients, asked.rounds, asked.consensus)
        print(
            f"| {clients:,} | {row['first']:.2f} s | {row['later']:.2f} s | {row['wall']:.2f} s | "
            f"{PAPER.get(clients, float('nan')):.2f} s | {row['built']:.1f} s | "
            f"{row['memory']:.0f} MB |",
            flush=True,
        )


if __name__ == "__main__":
    main()
