"""One training step of 32 windows, in milliseconds of one thread: step.py [MODEL ...] [--profile].

Every architecture gets four sensors of 128 steps (3, 3, 3 and 1 channels), as in workload W1, and
takes a step of FedAvg's local training: forward, cross-entropy, backward, SGD with momentum. The
architectures take turns, and the least of several times counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from communis import Batch, Streams
from communis.methods.parts.optim import make_optimizer
from communis.models.network import initialise
from communis.models.zoo import ZOO
from communis.run.backends.machine import keep_freed_memory

SHAPES = {"acc": (3, 128), "gyro": (3, 128), "hr": (1, 128), "mag": (3, 128)}
CLASSES = 12
WINDOWS = 32


def make_step(name: str) -> Callable[[], None]:
    with Streams(0).torch("build"):
        model = ZOO[name].build(SHAPES, CLASSES)
        inputs = {m: torch.randn(WINDOWS, *shape) for m, shape in SHAPES.items()}
        target = torch.randint(0, CLASSES, (WINDOWS,))
    initialise(model, Streams(0))
    here = torch.ones(WINDOWS, dtype=torch.bool)
    batch = Batch(inputs, dict.fromkeys(SHAPES, here), target)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = make_optimizer("sgd", parameters, lr=0.001, momentum=0.9)
    model.train()

    def step() -> None:
        for p in parameters:
            p.grad = None
        F.cross_entropy(model(batch).prediction, target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def profile(step: Callable[[], None]) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    with recorded(activities=[ProfilerActivity.CPU], record_shapes=True) as found:
        for _ in range(20):
            step()
    averages = found.key_averages(group_by_input_shape=True)
    print(averages.table(sort_by="self_cpu_time_total", row_limit=30, max_shapes_column_width=70))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["cnn"])
    parser.add_argument("--seconds", type=float, default=2.0, help="time per model")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    steps = {name: make_step(name) for name in options.models}
    best = dict.fromkeys(steps, float("inf"))
    for step in steps.values():
        step()
    end = time.perf_counter() + options.seconds * len(steps)
    while time.perf_counter() < end:
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            best[name] = min(best[name], time.perf_counter() - start)
    for name, seconds in best.items():
        print(f"{name:24s} {1000 * seconds:8.2f} ms")
        if options.profile:
            profile(steps[name])


if __name__ == "__main__":
    main()
