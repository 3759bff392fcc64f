"""Columns of official files: time stamps as steps of a grid, codes as classes, selected names."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError

Name = TypeVar("Name", str, int)
UNKNOWN = -2  # a code without a class


def steps(path: Path, times: Array, rate: float) -> Array:
    """Returns for every time stamp (seconds) its step on a regular grid that begins at the first
    one. A step without a row was not sensed; if two rows have the same step, the later one
    counts."""
    backward = np.flatnonzero(~(np.diff(times) >= 0))
    if len(backward):
        row = backward[0]
        raise CommunisError(
            f"{path}, line {row + 2}: time stamp {times[row + 1]:g} s after "
            f"{times[row]:g} s; expected ascending time stamps: get the file again"
        )
    step = np.rint((times - times[0]) * rate)
    measured = len(times) / (step[-1] + 1) * rate
    if not 0.5 * rate <= measured <= 1.1 * rate:
        raise CommunisError(
            f"{path}: {len(times)} rows in {times[-1] - times[0]:g} s are {measured:.4g} Hz, "
            f"expected {rate:g} Hz; is the time in the first column?"
        )
    return np.asarray(step, np.int64)


def classes(path: Path, codes: Array, known: Mapping[int, int]) -> Array:
    """Returns the class numbers of a label column; an error names the line of an unknown code."""
    distinct, index = np.unique(codes, return_inverse=True)
    class_of = []
    for code in distinct:
        is_whole = code == code // 1
        class_of.append(known.get(int(code), UNKNOWN) if is_whole else UNKNOWN)
    result = np.array(class_of)[index]
    unknown = np.flatnonzero(result == UNKNOWN)
    if len(unknown):
        row = unknown[0]
        raise CommunisError(
            f"{path}, line {row + 1}: label {codes[row]:g}; "
            f"expected one of {', '.join(map(str, sorted(known)))}"
        )
    return np.asarray(result, np.int64)


def chosen(key: str, wanted: Collection[Name], known: Iterable[Name]) -> tuple[Name, ...]:
    """Returns the known names that are wanted, in the order of `known`; all if `wanted` is empty.
    An error names a wanted name that is not known."""
    known = tuple(known)
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise CommunisError(f"{key}: no {unknown[0]!r}; there are {', '.join(map(str, known))}")
    return tuple(name for name in known if not wanted or name in wanted)
