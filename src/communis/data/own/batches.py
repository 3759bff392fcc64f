"""Batches: devices that send many samples at once give them one time stamp."""

from __future__ import annotations

from typing import Literal

import numpy as np

from communis.core.arrays import Array

EQUAL = 1e-6  # seconds: closer time stamps are equal
LARGE = 5  # a step larger than this many usual ones may lie between two batches
FEWEST = 0.005  # share of steps that lie between batches, at least: up to 200 samples in a batch
LEAST = 5  # batches, if their time stamps are not quite equal: otherwise they may be pauses
LONGEST = 5  # seconds between such batches
MOST_OF_TIME = 0.8  # share of time that the steps between batches take, at least
PAUSE = 3  # a step of more than this many usual ones between batches is a pause
SAME = 0.1  # of a step at the rate: closer time stamps belong to one batch
SPREAD = 2  # a batch is spread until the next one if that is at most this many times its length


def batch_rate(times: Array) -> float:
    """Returns samples per second, counted over the time between batches; 0 if the time stamps are
    not batched: most of them are equal, or most time passes in steps that are much larger than the
    usual one."""
    with np.errstate(over="ignore", invalid="ignore"):  # damaged time stamps
        return _batch_rate(np.diff(times))


def _batch_rate(steps: Array) -> float:
    steps = steps[steps >= 0]
    if len(steps) < 2:
        return 0.0
    usual = float(np.median(steps))
    between = steps > LARGE * usual + EQUAL
    if not between.any():
        return 0.0
    intervals = steps[between]
    regular = intervals <= PAUSE * np.median(intervals)
    if usual > EQUAL:
        share = intervals[regular].sum() / steps[~between | _within(steps, intervals)].sum()
        few = between.mean() < FEWEST or len(intervals) < LEAST
        if few or share < MOST_OF_TIME or np.median(intervals) > LONGEST:
            return 0.0
    # The steps inside of a batch and the one to the next batch are as many as its samples.
    ends = np.flatnonzero(between)
    counts = np.diff(ends, prepend=-1)
    seconds = np.diff(np.concatenate(([0.0], np.cumsum(steps)[ends])))
    return float(counts[regular].sum() / seconds[regular].sum())


def _within(steps: Array, intervals: Array) -> Array:
    """Returns which steps are no pauses."""
    return np.asarray(steps <= PAUSE * np.median(intervals))


def spread(times: Array, rate: float, stamped: Literal["first", "last"]) -> Array:
    """Returns a time for every sample. A batch is spread evenly from its time stamp to the next one
    (or from the one before), or at the rate where a pause follows. stamped: the sample of a batch
    that its time stamp belongs to."""
    if not len(times):
        return times
    starts = np.flatnonzero(np.abs(np.diff(times, prepend=-np.inf)) > SAME / rate)
    counts = np.diff(starts, append=len(times))
    within = np.arange(len(times)) - np.repeat(starts, counts)
    stamps = times[starts]
    if stamped == "first":
        seconds = np.diff(stamps, append=np.inf)
    else:
        stamps = times[starts + counts - 1]
        seconds = np.diff(stamps, prepend=-np.inf)
        within = within - np.repeat(counts - 1, counts)
    even = (seconds > 0) & (seconds <= SPREAD * counts / rate)
    steps = np.where(even, seconds, counts / rate) / counts
    return np.asarray(np.repeat(stamps, counts) + within * np.repeat(steps, counts))
