"""Splits: assign windows to training, validation and test. No sample is ever in two of these parts,
unless the split is "leaky"."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.data.recordings.shares import apportioned
from communis.data.recordings.windows import TEST, TRAIN, UNUSED, VAL, Windows

SplitKind = Literal["time", "subject", "scene", "session", "trial", "leaky"]
log = logging.getLogger("communis")
CLOSE = 1e-6  # share of a window by which computed times may be off, because of rounding
LEAKY = (
    "leaky split: windows were assigned at random, so windows that overlap or follow each other "
    "are in training and in test, and scores are too high"
)


@dataclass(frozen=True)
class Splits:
    """The settings of a split. By kind, the windows of the test are

    time            the last part of every stretch of one class; the first part trains. Where
                    classes alternate quickly, a test window has training windows of other classes
                    next to it, which `apart` leaves out
    subject, scene  all windows of some subjects or scenes
    session         the last sessions of every subject
    trial           the last trials of every subject and class
    leaky           windows at random
    """

    kind: SplitKind = "time"
    shares: tuple[float, float, float] = (0.6, 0.2, 0.2)  # shares of training, validation and test
    gap: float = 1.0  # gap between the parts of a stretch of one class, in window lengths
    held_out: tuple[int, ...] = ()  # numbers of the subjects, scenes, sessions or trials to test on
    apart: float = 0.0  # gap between the parts of a recording, of any class, in seconds

    def __post_init__(self) -> None:
        if min(self.shares) < 0 or self.shares[0] <= 0:
            raise CommunisError(
                f"shares must be at least 0, and that of training above 0, got {self.shares}"
            )
        if self.gap < 0:
            raise CommunisError(f"gap must be at least 0, got {self.gap}")
        if not 0 <= self.apart < math.inf:
            raise CommunisError(f"apart must be at least 0 seconds, got {self.apart}")
        if self.apart and self.kind == "leaky":
            raise CommunisError("apart has no meaning for split = 'leaky', which mixes all windows")
        if self.held_out and self.kind in ("time", "leaky"):
            raise CommunisError(f"held_out has no meaning for split = {self.kind!r}")

    def apply(self, windows: Windows, streams: Streams) -> Windows:
        rng = streams.generator("split")
        if self.kind == "leaky":
            chances = np.array(self.shares) / sum(self.shares)
            split = rng.choice(3, len(windows), p=chances).astype(np.int8)
            return replace(windows, split=split, notes=(*windows.notes, LEAKY))
        if self.kind == "time":
            split = self._by_time(windows, rng)
        elif self.kind in ("subject", "scene"):
            split = self._by_group(windows, rng)
        else:
            split = self._last(windows)
        gap = self.apart / windows.seconds
        split = separated(split, windows.recording, windows.start, windows.seconds, gap)
        for part, name in ((TRAIN, "training"), (TEST, "the test")):
            if self.shares[part] and not (split == part).any():
                raise CommunisError(
                    f"split by {self.kind} leaves no window for {name}: there are too few units to "
                    "divide, or data.apart is too long; choose another data.split, or other "
                    "data.shares, data.held_out or data.apart"
                )
        if self.shares[VAL] and self.apart and not (split == VAL).any():
            log.warning("data.apart = %g leaves no window for validation", self.apart)
        return replace(windows, split=split)

    def _by_time(self, windows: Windows, rng: np.random.Generator) -> Array:
        order = np.lexsort((windows.start, windows.recording))
        stretch = _stretches(windows, order)
        _, first, index, count = np.unique(
            stretch[order], return_index=True, return_inverse=True, return_counts=True
        )
        rank = np.arange(len(order)) - first[index]
        skip = self._skipped(windows, order, stretch)
        # A stretch that is too short to be divided goes to one part, class by class.
        used_parts = sum(share > 0 for share in self.shares)
        short = count - (used_parts - 1) * (skip + 1) < 1
        part_of_short = np.full(len(count), UNUSED, np.int8)
        class_of = windows.classes[order][first]
        for number in np.unique(class_of[short]):
            chosen = rng.permutation(np.flatnonzero(short & (class_of == number)))
            part_of_short[chosen] = _counted(len(chosen), self.shares)
        divided = _dealt(rank, count[index], self.shares, skip)
        split = np.empty(len(order), np.int8)
        split[order] = np.where(short[index], part_of_short[index], divided)
        return separated(split, stretch, windows.start, windows.seconds, self.gap)

    def _skipped(self, windows: Windows, order: Array, stretch: Array) -> int:
        """Returns the number of windows in the gap between two parts."""
        steps = np.diff(windows.start[order])[np.diff(stretch[order]) == 0]
        steps = steps[steps > 0]
        step = float(np.median(steps)) if len(steps) else windows.seconds
        return max(0, int(np.ceil((1 + self.gap) * windows.seconds / step - CLOSE)) - 1)

    def _by_group(self, windows: Windows, rng: np.random.Generator) -> Array:
        """Assigns all windows of a subject or scene to the same part."""
        group_of = windows.owner if self.kind == "subject" else windows.scene
        groups, index = np.unique(group_of, return_inverse=True)
        order = rng.permutation(len(groups))
        split = np.empty(len(groups), np.int8)
        if self.held_out:
            held = self._is_held_out(groups)
            rest = order[~held[order]]
            split[held] = TEST
            split[rest] = _counted(len(rest), (*self.shares[:2], 0.0))
        else:
            split[order] = _counted(len(groups), self.shares)
        return split[index]

    def _last(self, windows: Windows) -> Array:
        """Assigns the last sessions of a subject, or trials of a subject and class, to the test."""
        number = windows.session if self.kind == "session" else windows.trial
        if self.held_out:
            numbers = np.unique(number)
            test = np.isin(number, numbers[self._is_held_out(numbers)])
            shares: tuple[float, float, float] = (*self.shares[:2], 0.0)
        else:
            test = np.zeros(len(windows), bool)
            shares = self.shares
        within = [windows.owner]
        if self.kind == "trial":
            within.append(windows.classes)
        split = np.full(len(windows), TEST, np.int8)
        _, group = np.unique(np.stack(within), axis=1, return_inverse=True)
        unit = np.stack([group[~test], number[~test]])
        units, index = np.unique(unit, axis=1, return_inverse=True)
        _, first, group_of_unit, count = np.unique(
            units[0], return_index=True, return_inverse=True, return_counts=True
        )
        rank = np.arange(units.shape[1]) - first[group_of_unit]
        split[~test] = _dealt(rank, count[group_of_unit], shares)[index]
        return split

    def _is_held_out(self, groups: Array) -> Array:
        """Returns a flag for each group; raises an error if `held_out` names an unknown group."""
        unknown = [n for n in self.held_out if n not in groups]
        if unknown:
            known = ", ".join(str(g) for g in groups)
            raise CommunisError(f"held_out: no {self.kind} {unknown}; there are {known}")
        return np.isin(groups, self.held_out)


def separated(split: Array, within: Array, start: Array, seconds: float, gap: float) -> Array:
    """Returns the split without the windows that are closer than `gap` window lengths to a later
    part: training windows near validation or test, and validation windows near test."""
    split = split.copy()
    near = (1 + gap) * seconds * (1 - CLOSE)
    for part, others in ((TRAIN, (VAL, TEST)), (VAL, (TEST,))):
        distance = distances(within, start, np.isin(split, others))
        split[(split == part) & (distance < near)] = UNUSED
    return split


def distances(within: Array, start: Array, there: Array) -> Array:
    """Returns (N,) seconds from the start of every window to the start of the nearest window with
    the flag `there` in the same stretch or recording; Inf if it has none."""
    order = np.lexsort((start, within))
    group = within[order]
    time = start[order]
    marked = there[order]
    row = np.arange(len(order))
    before = np.maximum.accumulate(np.where(marked, row, -1))
    after = np.minimum.accumulate(np.where(marked, row, len(row))[::-1])[::-1]
    nearest = np.full(len(order), np.inf)
    for neighbour, exists in ((before, before >= 0), (after, after < len(row))):
        rows = np.flatnonzero(exists)
        rows = rows[group[neighbour[rows]] == group[rows]]
        distance = np.abs(time[neighbour[rows]] - time[rows])
        nearest[rows] = np.minimum(nearest[rows], distance)
    result = np.empty(len(order))
    result[order] = nearest
    return result


def _stretches(windows: Windows, order: Array) -> Array:
    """Returns (N,) for every window the number of its stretch of one class in one recording."""
    new = np.diff(windows.recording[order], prepend=-1) != 0
    new |= np.diff(windows.classes[order], prepend=-2) != 0
    stretch = np.empty(len(order), np.int64)
    stretch[order] = np.cumsum(new)
    return stretch


def _dealt(rank: Array, count: Array, shares: tuple[float, float, float], skip: int = 0) -> Array:
    """Returns the part of the rank-th of `count` things in order, with `skip` left out between
    parts."""
    split = np.empty(len(rank), np.int8)
    gaps = sum(share > 0 for share in shares) - 1
    for n in np.unique(count):
        parts = _counted(max(0, int(n) - gaps * skip), shares)
        ends = np.flatnonzero(np.diff(parts)) + 1
        with_gaps = np.insert(parts, np.repeat(ends, skip), UNUSED)
        missing = max(0, n - len(with_gaps))
        with_gaps = np.pad(with_gaps, (0, missing), constant_values=UNUSED)
        selected = count == n
        split[selected] = with_gaps[rank[selected]]
    return split


def _counted(count: int, shares: tuple[float, float, float]) -> Array:
    """Returns the parts of `count` groups in order. If remainders are equal or there are too few
    groups, training has priority, then the test."""
    train, test, val = apportioned((shares[TRAIN], shares[TEST], shares[VAL]), count).tolist()
    counts = [train, val, test]
    for part in (TRAIN, TEST, VAL):
        giver = counts.index(max(counts))
        spare = counts[giver] > 1 or part == TRAIN or (part == TEST and giver == VAL)
        if shares[part] and not counts[part] and spare and counts[giver]:
            counts[part] = 1
            counts[giver] -= 1
    return np.repeat(np.arange(3, dtype=np.int8), counts)
