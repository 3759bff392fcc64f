"""What the noise of UMEDA's mechanism leaves of its block, for every choice of the block.

    python benchmarks/noised_basis/measure.py [--rounds 10] [--seeds 1 2 3] [--epsilon 2]

The preset umeda/kappa with the mean of cores as consensus, so that nothing but the block differs.
Two numbers, over all rounds but the first, in which all blocks are that of the start:

* captured: the share of the energy of clients' changes, before they are noised, that the block
  holds.
* changed by kappa: how far the mean of cores, as a matrix of full size, at kappa = 4 is from that
  at kappa = 1 with the same draws of noise, as a share of the latter's length.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import Any, ClassVar

import torch
from torch import Tensor

from communis import Client, Replies, Run, State
from communis.methods.parts.diffusion import operators as ops
from communis.methods.umeda import Down, Private, Server, Umeda, Up
from communis.run.config import load_cells

BLOCKS = ("momentum", "theta", "fixed", "factored")


@dataclass(frozen=True)
class Watched(Umeda):
    """Writes down what of a change is in the block, and what the server makes of all of them."""

    captured: ClassVar[list[tuple[int, float]]] = []  # round, share
    seen: ClassVar[list[Tensor]] = []  # by round: the mean of cores, lifted, as one vector

    def local(self, client: Client, state: Private, down: Down) -> tuple[Private, Up]:
        state, up = super().local(client, state, down)
        change = State(up.operator) - down.operator
        cores = ops.cores(change, down.u, down.v)
        self.captured.append((client.round, ops.captured([cores], [change])))
        return state, up

    def aggregate(self, server: Server, ups: Replies[Up]) -> Server:
        changes = [State(up.operator) - server.theta for _, up in ups.each()]
        cores = [ops.cores(change, server.u, server.v) for change in changes]
        lifted = ops.lifted(ops.mean(cores, torch.ones(len(cores))), server.u, server.v)
        self.seen.append(ops.point(lifted).double())
        return super().aggregate(server, ups)


def ran(block: str, kappa: float, seed: int, rounds: int, epsilon: float) -> list[Tensor]:
    """What the server saw in every round; `Watched.captured` has what clients sent."""
    changes = [f"seed={seed}", f"run.rounds={rounds}", "run.eval_every=0", "run.workers=1"]
    changes += [f"privacy.epsilon={epsilon}"]
    if block == "factored":
        changes += ["fleet.sglt.operator=factored", "fleet.sglt.operator_rank=8"]
    config = load_cells("umeda/kappa", changes)["4"]
    settings: dict[str, Any] = {
        "consensus": "spectral_mean",
        "basis": "fixed" if block == "factored" else block,
        "warmup": 0,  # a warm-up round lets all of the noise into theta_M
    }
    method = config.under("umeda").make_method()
    watched = Watched(**{**vars(method), **settings})
    Watched.captured.clear()
    Watched.seen.clear()
    privacy = replace(config.privacy, kappa=kappa)
    with Run(config.make_fleet(), watched, config.run, privacy=privacy) as run:
        list(run)
    return list(Watched.seen)


def measured(block: str, seed: int, rounds: int, epsilon: float) -> tuple[float, float]:
    """Captured at kappa = 4, and changed by kappa."""
    at_1 = ran(block, 1.0, seed, rounds, epsilon)
    at_4 = ran(block, 4.0, seed, rounds, epsilon)
    later = [share for round, share in Watched.captured if round > 1]
    changed = [float((b - a).norm() / a.norm()) for a, b in list(zip(at_1, at_4, strict=True))[1:]]
    return mean(later), mean(changed)


def row(block: str, seeds: Sequence[int], rounds: int, epsilon: float) -> str:
    found = [measured(block, seed, rounds, epsilon) for seed in seeds]
    captured = ", ".join(f"{share:.3f}" for share, _ in found)
    changed = ", ".join(f"{share:.2g}" for _, share in found)
    return f"| `{block}` | {captured} | {changed} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--epsilon", type=float, default=2.0)
    asked = parser.parse_args()
    print("| block | captured, by seed | changed by kappa, by seed |")
    print("|---|---|---|")
    for block in BLOCKS:
        print(row(block, asked.seeds, asked.rounds, asked.epsilon), flush=True)


if __name__ == "__main__":
    main()
