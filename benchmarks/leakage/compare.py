"""Macro-F1 of one small CNN on pooled data, under splits that leak and splits that do not.

    python benchmarks/leakage/compare.py usc_had=FOLDER dsads=FOLDER

Everything but the split is the same: windows (half overlapping), model, seeds, number of updates.
"""

from __future__ import annotations

import statistics
import sys

from communis import Run
from communis.run import config

SPLITS = ("leaky", "time", "subject")
SEEDS = range(3)
ROUNDS = 8


def score(name: str, folder: str, split: str, seed: int) -> float:
    settings = [
        f"seed={seed}",
        f"data.folder={folder}",
        f"data.split={split}",
        f"data.stride={ {'usc_had': 1.28, 'dsads': 2.5}[name] }",
        "fleet.models=['cnn']",
        "fleet.normalise=fleet",
        "method.name=centralized",
        "method.lr=0.05",
        "method.momentum=0.9",
        "method.batch=64",
        "method.epochs=1",
        f"run.rounds={ROUNDS}",
        "run.eval_every=0",
        "run.eval_subsets=own",
        "run.workers=1",
    ]
    made = config.bare({"name": name}, settings)
    with Run(made.make_fleet(), made.make_method(), made.run) as run:
        for _ in run:
            pass
        found = run.scores()
    test = found[(found["split"] == "test") & (found["metric"] == "macro_f1")]
    return float(test["value"].mean())


def main() -> None:
    for argument in sys.argv[1:]:
        name, _, folder = argument.partition("=")
        for split in SPLITS:
            scores = [score(name, folder, split, seed) for seed in SEEDS]
            mean, spread = statistics.fmean(scores), statistics.stdev(scores)
            print(f"{name:8} {split:8} macro-F1 {mean:.3f} ± {spread:.3f}  {scores}", flush=True)


if __name__ == "__main__":
    main()
