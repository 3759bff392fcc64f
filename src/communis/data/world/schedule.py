"""Schedule: which window shows which class, in which trial.

A subject does one class after the other, each for one run of consecutive windows. A run consists of
trials, in each of which the same people stay at it without a break; a new trial is a new place,
heading and phase. A run has several trials, so that whole ones can train, validate and test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communis.data.recordings.shares import apportioned
from communis.data.world.body import Array

TRIALS = 5  # in a run at least, if it has as many windows


@dataclass(frozen=True)
class Schedule:
    label: Array  # (N,) class of each window
    trial: Array  # (N,) numbered from 0
    turn: Array  # (N,) which trial of its class it is, from 0
    into: Array  # (N,) windows since the trial began


def schedule(
    rng: np.random.Generator, windows: int, classes: int, skew: float, longest: int
) -> Schedule:
    """`skew`: concentration of the Dirichlet distribution of classes; `longest`: windows in a
    trial at most."""
    counts = apportioned(rng.dirichlet(np.full(classes, skew)), windows)
    order = rng.permutation(classes)
    counts = counts[order]
    label, count = np.repeat(order, counts), np.repeat(counts, counts)
    inside = np.arange(windows) - np.repeat(np.cumsum(counts) - counts, counts)  # of the run
    trials = np.maximum(-(-count // longest), np.minimum(count, TRIALS))
    turn = inside * trials // count
    first = (inside == 0) | (np.diff(turn, prepend=0) != 0)
    trial = np.cumsum(first) - 1
    return Schedule(label, trial, turn, np.arange(windows) - np.flatnonzero(first)[trial])
