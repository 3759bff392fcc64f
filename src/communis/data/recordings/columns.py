"""Columns of official files: time stamps on a steady grid, codes as classes, names that were asked
for."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError

Name = TypeVar("Name", str, int)


def steps(path: Path, times: Array, rate: float) -> Array:
    """The step of a steady grid that every time stamp (seconds) falls on, from the first one on.
    A step that no row falls on was not sensed; of two rows in one step the later one counts."""
    back = np.flatnonzero(~(np.diff(times) >= 0))
    if len(back):
        raise CommunisError(
            f"{path}, line {back[0] + 2}: time stamp {times[back[0] + 1]:g} s after "
            f"{times[back[0]]:g} s; expected time stamps that rise: get the file again"
        )
    step = np.rint((times - times[0]) * rate)
    found = len(times) / (step[-1] + 1) * rate
    if not 0.5 * rate <= found <= 1.1 * rate:
        raise CommunisError(
            f"{path}: {len(times)} rows in {times[-1] - times[0]:g} s are {found:.4g} Hz, "
            f"expected {rate:g} Hz; is the time in the first column?"
        )
    return np.asarray(step, np.int64)


def classes(path: Path, codes: Array, known: Mapping[int, int]) -> Array:
    """The class numbers of a label column; an error names the line of a code that is unknown."""
    there, index = np.unique(codes, return_inverse=True)
    numbered = np.array([known.get(int(c), -2) if c == c // 1 else -2 for c in there])
    wrong = np.flatnonzero(numbered[index] == -2)
    if len(wrong):
        raise CommunisError(
            f"{path}, line {wrong[0] + 1}: label {codes[wrong[0]]:g}; "
            f"expected one of {', '.join(map(str, sorted(known)))}"
        )
    return np.asarray(numbered[index], np.int64)


def chosen(key: str, wanted: Collection[Name], known: Iterable[Name]) -> tuple[Name, ...]:
    """What is known and wanted, in the order of what is known; nothing wanted means everything."""
    known = tuple(known)
    wrong = [w for w in wanted if w not in known]
    if wrong:
        raise CommunisError(f"{key}: no {wrong[0]!r}; there are {', '.join(map(str, known))}")
    return tuple(k for k in known if not wanted or k in wanted)
