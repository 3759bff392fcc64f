"""Splits: which windows train, validate and test. No sample is ever in two of them, unless the
split is called leaky."""

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
CLOSE = 1e-6  # the share of a window by which times are off that were computed, as by dividing
LEAKY = (
    "leaky split: windows were dealt out at random, so windows that overlap or follow each other "
    "lie in training and test; scores are too good"
)


@dataclass(frozen=True)
class Splits:
    """time: the first part of every stretch of one class trains, the last part tests, so where
    classes alternate quickly a test window has training windows of other classes beside it (`apart`
    leaves those out);
    subject, scene: some are tested on and never trained on; session: the last sessions of every
    subject test; trial: the last trials of every subject and class test; leaky: windows at random.
    """

    kind: SplitKind = "time"
    shares: tuple[float, float, float] = (0.6, 0.2, 0.2)
    gap: float = 1.0  # window lengths left out between the parts of a stretch
    held_out: tuple[int, ...] = ()  # subjects, scenes, sessions or trials that test
    apart: float = 0.0  # seconds between the parts of a recording, whatever their class

    def __post_init__(self) -> None:
        if min(self.shares) < 0 or self.shares[0] <= 0:
            raise CommunisError(f"shares must be at least 0 and some must train: {self.shares}")
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
            split = self._whole(windows, rng)
        else:
            split = self._last(windows)
        gap = self.apart / windows.seconds
        split = separated(split, windows.recording, windows.start, windows.seconds, gap)
        for part, name in ((TRAIN, "training"), (TEST, "the test")):
            if self.shares[part] and not (split == part).any():
                raise CommunisError(
                    f"split by {self.kind} leaves no window for {name}: there are too few of what "
                    "it divides, or data.apart leaves none between; choose another data.split, or "
                    "other data.shares, data.held_out or data.apart"
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
        # A stretch too short to be cut goes to one part as a whole, class by class.
        short = count - (sum(share > 0 for share in self.shares) - 1) * (skip + 1) < 1
        whole = np.full(len(count), UNUSED, np.int8)
        kinds = windows.classes[order][first]
        for kind in np.unique(kinds[short]):
            these = rng.permutation(np.flatnonzero(short & (kinds == kind)))
            whole[these] = _counted(len(these), self.shares)
        split = np.where(short[index], whole[index], _dealt(rank, count[index], self.shares, skip))
        result = np.empty(len(order), np.int8)
        result[order] = split
        return separated(result, stretch, windows.start, windows.seconds, self.gap)

    def _skipped(self, windows: Windows, order: Array, stretch: Array) -> int:
        """How many windows the gap between two parts takes."""
        apart = np.diff(windows.start[order])[np.diff(stretch[order]) == 0]
        apart = apart[apart > 0]
        step = float(np.median(apart)) if len(apart) else windows.seconds
        return max(0, int(np.ceil((1 + self.gap) * windows.seconds / step - CLOSE)) - 1)

    def _whole(self, windows: Windows, rng: np.random.Generator) -> Array:
        of = windows.owner if self.kind == "subject" else windows.scene
        groups, index = np.unique(of, return_inverse=True)
        order = rng.permutation(len(groups))
        split = np.empty(len(groups), np.int8)
        if self.held_out:
            held = self._known(groups)
            rest = order[~held[order]]
            split[held] = TEST
            split[rest] = _counted(len(rest), (*self.shares[:2], 0.0))
        else:
            split[order] = _counted(len(groups), self.shares)
        return split[index]

    def _last(self, windows: Windows) -> Array:
        of = windows.session if self.kind == "session" else windows.trial
        if self.held_out:
            held = self._known(np.unique(of))
            test = np.isin(of, np.unique(of)[held])
            shares: tuple[float, float, float] = (*self.shares[:2], 0.0)
        else:
            test, shares = np.zeros(len(windows), bool), self.shares
        within = [windows.owner, *([windows.classes] if self.kind == "trial" else [])]
        split = np.full(len(windows), TEST, np.int8)
        _, group = np.unique(np.stack(within), axis=1, return_inverse=True)
        unit = np.stack([group[~test], of[~test]])
        units, index = np.unique(unit, axis=1, return_inverse=True)
        _, first, back, count = np.unique(
            units[0], return_index=True, return_inverse=True, return_counts=True
        )
        rank = np.arange(units.shape[1]) - first[back]
        split[~test] = _dealt(rank, count[back], shares)[index]
        return split

    def _known(self, groups: Array) -> Array:
        unknown = [n for n in self.held_out if n not in groups]
        if unknown:
            there = ", ".join(str(g) for g in groups)
            raise CommunisError(f"held_out: no {self.kind} {unknown}; there are {there}")
        return np.isin(groups, self.held_out)


def separated(split: Array, within: Array, start: Array, seconds: float, gap: float) -> Array:
    """Windows that come closer than `gap` window lengths to a later part are left out: those that
    train if near one that validates or tests, those that validate if near one that tests."""
    split = split.copy()
    near = (1 + gap) * seconds * (1 - CLOSE)
    for part, others in ((TRAIN, (VAL, TEST)), (VAL, (TEST,))):
        distance = distances(within, start, np.isin(split, others))
        split[(split == part) & (distance < near)] = UNUSED
    return split


def distances(within: Array, start: Array, there: Array) -> Array:
    """(N,) seconds from the start of every window to that of the nearest one `there` (bool) within
    the same stretch or recording; Inf where there is none."""
    order = np.lexsort((start, within))
    place, at, marked = within[order], start[order], there[order]
    row = np.arange(len(order))
    before = np.maximum.accumulate(np.where(marked, row, -1))
    after = np.minimum.accumulate(np.where(marked, row, len(row))[::-1])[::-1]
    nearest = np.full(len(order), np.inf)
    for other, known in ((before, before >= 0), (after, after < len(row))):
        same = np.flatnonzero(known)
        same = same[place[other[same]] == place[same]]
        nearest[same] = np.minimum(nearest[same], np.abs(at[other[same]] - at[same]))
    found = np.empty(len(order))
    found[order] = nearest
    return found


def _stretches(windows: Windows, order: Array) -> Array:
    """(N,) the number of the stretch of one class in one recording that a window lies in."""
    new = np.diff(windows.recording[order], prepend=-1) != 0
    new |= np.diff(windows.classes[order], prepend=-2) != 0
    stretch = np.empty(len(order), np.int64)
    stretch[order] = np.cumsum(new)
    return stretch


def _dealt(rank: Array, count: Array, shares: tuple[float, float, float], skip: int = 0) -> Array:
    """The part of the rank-th of `count` things in a row, with `skip` left out between parts."""
    split = np.empty(len(rank), np.int8)
    gaps = sum(share > 0 for share in shares) - 1
    for n in np.unique(count):
        parts = _counted(max(0, int(n) - gaps * skip), shares)
        ends = np.flatnonzero(np.diff(parts)) + 1
        row = np.insert(parts, np.repeat(ends, skip), UNUSED)
        here = count == n
        split[here] = np.pad(row, (0, max(0, n - len(row))), constant_values=UNUSED)[rank[here]]
    return split


def _counted(count: int, shares: tuple[float, float, float]) -> Array:
    """The parts of `count` groups in a row. Training comes first, then the test, where remainders
    are equal or groups too few."""
    train, test, val = apportioned((shares[TRAIN], shares[TEST], shares[VAL]), count).tolist()
    exact = [train, val, test]
    for part in (TRAIN, TEST, VAL):
        giver = exact.index(max(exact))
        spare = exact[giver] > 1 or part == TRAIN or (part == TEST and giver == VAL)
        if shares[part] and not exact[part] and spare and exact[giver]:
            exact[part], exact[giver] = 1, exact[giver] - 1
    return np.repeat(np.arange(3, dtype=np.int8), exact)
