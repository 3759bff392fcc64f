"""A method of your own in one file: the coordinate-wise median instead of FedAvg's mean.

Run it: python examples/own_method.py
In a configuration: [method] name = "own_method:FedMedian" (with this folder on PYTHONPATH).
"""

from dataclasses import dataclass

import torch

from communis import FedAvg, Plan, Replies, Run, State, load
from communis.methods.fedavg import Server, Up


@dataclass(frozen=True)
class FedMedian(FedAvg):
    """Robust to a minority of bad clients; needs every single message, so it calls `each`."""

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        sent = [up.w for _, up in ups.each()]
        held = {path: [w[path] for w in sent if path in w] for path in server.w}
        medians = {
            path: torch.stack(found).median(0).values for path, found in held.items() if found
        }
        return Server(w=server.w | State(medians))


def main() -> None:
    fleet = load("synthetic").make_fleet()
    for method in (FedAvg(momentum=0.9), FedMedian(momentum=0.9)):
        with Run(fleet, method, Plan(rounds=3)) as run:
            last = list(run)[-1]
        print(f"{type(method).__name__:10s} test accuracy {last.scores['test.accuracy']:.3f}")


if __name__ == "__main__":
    main()
