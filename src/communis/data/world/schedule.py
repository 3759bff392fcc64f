"""Schedule: the class and the trial of every window.

A subject does one class after the other, each for one run of consecutive windows. A run consists of
trials. Within a trial the same people continue without a break; a new trial has a new place,
heading and phase. A run has several trials, so that complete trials can train, validate and test.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communis.data.recordings.shares import apportioned
from communis.data.world.body import Array

TRIALS = 5  # fewest trials in a run, if it has as many windows


@dataclass(frozen=True)
class Schedule:
    """The plan of one subject's windows."""

    label: Array  # (N,) class of each window
    trial: Array  # (N,) number of the trial, from 0
    turn: Array  # (N,) number of the trial among those of its class, from 0
    into: Array  # (N,) windows since the trial began


def schedule(
    rng: np.random.Generator, windows: int, classes: int, skew: float, longest: int
) -> Schedule:
    """Draws a schedule. `skew` is the concentration of the Dirichlet distribution of classes,
    `longest` the largest number of windows in a trial."""
    counts = apportioned(rng.dirichlet(np.full(classes, skew)), windows)
    order = rng.permutation(classes)
    counts = counts[order]
    label = np.repeat(order, counts)
    count = np.repeat(counts, counts)  # windows in the run
    position = np.arange(windows) - np.repeat(np.cumsum(counts) - counts, counts)  # in the run
    trials = np.maximum(-(-count // longest), np.minimum(count, TRIALS))
    turn = position * trials // count
    first = (position == 0) | (np.diff(turn, prepend=0) != 0)
    trial = np.cumsum(first) - 1
    into = np.arange(windows) - np.flatnonzero(first)[trial]
    return Schedule(label, trial, turn, into)
