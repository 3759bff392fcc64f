"""What a method costs a client beyond FedAvg: parameters, bytes and seconds of local training.

    python benchmarks/overhead/measure.py [--model tpn] [--steps 200] [--modalities 6]

Made windows, every sensor there: a client's work does not depend on what the numbers are. Methods
take turns on one thread; the least of several times counts.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

from communis import Fleet, Replies, Windows
from communis.core.plugins import find
from communis.core.tasks import Classification
from communis.exchange.wire import encode
from communis.fleet.clients import FleetClients

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.1},
    "moon": {},
    "fedper": {},
    "fedrod": {"deep": True},
    "pmcmfl": {},
    "fedduet": {},
    "fedduet, no UT": {"ut": False},
    "fedduet, no DT": {"dt": False},
}


def fleet(model: str, steps: int, modalities: int, classes: int, samples: int) -> Fleet:
    """Two clients; the second lacks one sensor, so that there is something to mask."""
    rng = np.random.default_rng(0)
    n = 2 * samples
    names = [f"m{i:02}" for i in range(modalities)]
    windows = Windows(
        inputs={m: rng.standard_normal((n, 3, steps), dtype=np.float32) for m in names},
        target=rng.integers(0, classes, n),
        owner=np.arange(n) % 2,
        split=np.zeros(n, np.int8),
        task=Classification(classes),
    )
    return Fleet.of(windows, suites=[tuple(names), tuple(names[:-1])], models=(model,))


class Bench:
    """The first client of a fleet in its second round with a method."""

    def __init__(self, made: Fleet, name: str, settings: dict[str, Any]) -> None:
        kind = find("methods", name.partition(",")[0])
        self.method = kind(momentum=0.9, weight_decay=5e-5, **settings)
        self.bound = FleetClients(made, self.method)
        self.server = self.method.start_server(self.bound)
        self.states = {i: self._start(i) for i in (0, 1)}
        ups = [(self.bound.cards[i], self.once(i)) for i in (0, 1)]
        self.server = self.method.aggregate(self.server, Replies(ups))

    def _start(self, i: int) -> Any:
        return self.method.start_client(self.bound.client(i, 1, fresh=True))

    def once(self, i: int = 0) -> Any:
        client = self.bound.client(i, 1, fresh=True)
        down = self.method.down(self.server, client.card)
        state = self.method.adopt(client, self.states[i], down)
        self.states[i], up = self.method.local(client, state, down)
        return up

    def seconds(self) -> float:
        start = time.perf_counter()
        self.once()
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tpn")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--modalities", type=int, default=6)
    parser.add_argument("--classes", type=int, default=12)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    made = fleet(asked.model, asked.steps, asked.modalities, asked.classes, asked.samples)
    benches = {name: Bench(made, name, settings) for name, settings in METHODS.items()}
    best = dict.fromkeys(benches, float("inf"))
    for _ in range(asked.repeats):
        for name, bench in benches.items():
            best[name] = min(best[name], bench.seconds())
    print("| method | parameters | of these stay | KB up | KB down | ms per step | x fedavg |")
    print("|---|---|---|---|---|---|---|")
    for name, bench in benches.items():
        card = bench.bound.cards[0]
        sizes = {path: int(np.prod(shape)) for path, shape in card.params.items()}
        stay = sum(sizes.values()) - sum(sizes[path] for path in bench.method.sends(card).paths)
        up, down = bench.once(), bench.method.down(bench.server, card)
        steps = -(-asked.samples // bench.method.batch)
        print(
            f"| {name} | {sum(sizes.values()):,} | {stay:,} | {encode(up).payload / 1000:,.1f} | "
            f"{encode(down).payload / 1000:,.1f} | {1000 * best[name] / steps:.1f} | "
            f"{best[name] / best['fedavg']:.2f} |"
        )


if __name__ == "__main__":
    main()
