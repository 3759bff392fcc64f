"""Schedule: which window shows which class, in which trial, and in which split it lies.

A subject does one class after the other, each for one run of consecutive windows. A run consists of
trials, in each of which the same people stay at it without a break; a new trial is a new place,
heading and phase. The first 60 % of every run train, the next 20 % validate, the last 20 % test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communis.world.body import Array

SHARES = (0.6, 0.8)  # of a run, at which validation and test begin


@dataclass(frozen=True)
class Schedule:
    label: Array  # (N,) class of each window
    split: Array  # (N,) 0 training, 1 validation, 2 test
    trial: Array  # (N,) numbered from 0
    turn: Array  # (N,) which trial of its class it is, from 0
    into: Array  # (N,) windows since the trial began


def schedule(
    rng: np.random.Generator, windows: int, classes: int, skew: float, trial: int
) -> Schedule:
    """`skew`: concentration of the Dirichlet distribution of classes; trials last `trial` windows
    or until the end of their run."""
    counts = apportioned(rng.dirichlet(np.full(classes, skew)), windows)
    order = rng.permutation(classes)
    counts = counts[order]
    label = np.repeat(order, counts)
    inside = np.arange(windows) - np.repeat(np.cumsum(counts) - counts, counts)  # of the run
    split = np.digitize((inside + 0.5) / np.repeat(counts, counts), SHARES)
    turn, into = np.divmod(inside, trial)
    return Schedule(label, split.astype(np.int8), np.cumsum(into == 0) - 1, turn, into)


def apportioned(shares: Array, total: int) -> Array:
    """Whole numbers in proportion to `shares` that add up to `total`: largest remainders."""
    exact = shares / shares.sum() * total
    counts = np.floor(exact + 1e-9).astype(np.int64)
    # Equal remainders go by position, so that balanced classes differ by one at most.
    rest = np.argsort(-np.round(exact - counts, 9), kind="stable")[: total - counts.sum()]
    counts[rest] += 1
    return np.asarray(counts)
