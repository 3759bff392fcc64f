"""What a training step of four transformers on tokens costs a client, in milliseconds of CPU time
and megabytes, by the number of tokens.

    python benchmarks/client_cost/measure.py [--width 256] [--heads 8] [--batch 4]

Whole models of one sensor, forward and backward, on one thread. For time they take turns, and the
least of several times counts. For memory each runs in a process of its own; what counts is how much
its peak grows by the model and two steps.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.nn.functional as F

from communis import Batch, Streams
from communis.models.network import initialise
from communis.models.tokens import PATCH
from communis.models.zoo import ZOO
from communis.run.backends.machine import keep_freed_memory

MODELS = ("self_attention", "lat", "sglt", "gat")
TOKENS = (64, 128, 256, 512, 1024, 2048)
CLASSES = 27


def step(name: str, tokens: int, options: argparse.Namespace) -> Callable[[], None]:
    """A forward and a backward pass of a fresh model."""
    kind = ZOO[name]
    kind = replace(kind, embedding=options.width, sglt=replace(kind.sglt, heads=options.heads))
    with Streams(0).torch("build"):
        model = kind.build({"acc": (3, PATCH * tokens)}, CLASSES)
        x = torch.randn(options.batch, 3, PATCH * tokens)
    initialise(model, Streams(0))
    here, target = torch.ones(len(x), dtype=torch.bool), torch.arange(len(x)) % CLASSES
    batch = Batch({"acc": x}, {"acc": here}, target)

    def once() -> None:
        model.zero_grad()
        F.cross_entropy(model(batch).prediction, target).backward()  # type: ignore[no-untyped-call]

    return once


def milliseconds(tokens: int, options: argparse.Namespace) -> list[float]:
    steps = {name: step(name, tokens, options) for name in MODELS}
    best = dict.fromkeys(MODELS, float("inf"))
    for turn in range(options.repeats + 1):
        for name, once in steps.items():
            start = time.thread_time()
            once()
            if turn:  # the first one warms up
                best[name] = min(best[name], time.thread_time() - start)
    return [1000 * seconds for seconds in best.values()]


def peak() -> float:
    """Of this process, in MB. Not `getrusage`, which begins with what its parent had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    if not found:
        raise SystemExit("memory is measured on Linux only")
    return int(found[1]) / 1024


def megabytes(name: str, tokens: int, options: argparse.Namespace) -> float:
    """Measured in a fresh process."""
    command = [sys.executable, __file__, "--memory", name, "--tokens", str(tokens)]
    for key in ("width", "heads", "batch"):
        command += [f"--{key}", str(getattr(options, key))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def grown(name: str, tokens: int, options: argparse.Namespace) -> float:
    step(name, 1, options)()  # what is loaded at first use is not the model's
    before = peak()
    once = step(name, tokens, options)
    once()
    once()
    return peak() - before


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", choices=MODELS)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        return print(grown(options.memory, options.tokens[0], options))
    keep_freed_memory()
    head = f"| tokens | {' | '.join(MODELS)} |\n|---{'|---' * len(MODELS)}|"
    print(f"milliseconds\n\n{head}")
    for tokens in options.tokens:
        cells = (f"{ms:,.0f}" for ms in milliseconds(tokens, options))
        print(f"| {tokens} | {' | '.join(cells)} |", flush=True)
    print(f"\nmegabytes\n\n{head}")
    for tokens in options.tokens:
        cells = (f"{megabytes(name, tokens, options):,.0f}" for name in MODELS)
        print(f"| {tokens} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
