"""Windows: pieces of recordings with a fixed length, stacked in arrays, with their split. The
arrays may be memory-mapped."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from communis.core.arrays import Array
from communis.core.contract import Modality, Task
from communis.core.errors import CommunisError
from communis.core.tasks import Classification
from communis.data.recordings.recording import Kind, nameable

TRAIN, VAL, TEST = 0, 1, 2
UNUSED = -1  # in a gap between the parts
ORIGIN = ("scene", "session", "trial", "recording", "start")  # arrays of the origin of windows


def _unknown() -> Array:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class Windows:
    """Windows with their targets and origins; the first axis of every array is the window."""

    inputs: Mapping[Modality, Array]  # (N, channels, ...) float32, NaN where nothing was sensed
    target: Array  # (N,) int64 or (N, columns) float32
    owner: Array  # (N,) int64: the subject, or another owner of the windows
    split: Array  # (N,) int8: TRAIN, VAL, TEST or UNUSED
    task: Task
    # (N,) bool; a modality that is not listed is always present
    present: Mapping[Modality, Array] = field(default_factory=dict)
    labels: tuple[str, ...] = ()  # class names
    # (N,) int64: room or base station; not given: one for all
    scene: Array = field(default_factory=_unknown)
    # (N,) int64, numbered within a subject
    session: Array = field(default_factory=_unknown)
    # (N,) int64, numbered within a subject and class
    trial: Array = field(default_factory=_unknown)
    # (N,) int64: every recording is one uninterrupted stretch of time
    recording: Array = field(default_factory=_unknown)
    # (N,) float64: seconds on the owner's timeline; not given: one window after the other
    start: Array = field(default_factory=_unknown)
    seconds: float = 1.0  # length of a window
    kinds: Mapping[Modality, Kind] = field(default_factory=dict)  # not listed: "series"
    units: Mapping[Modality, str] = field(default_factory=dict)
    # Hz; not listed: as many steps as a window has in its seconds
    rates: Mapping[Modality, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # remarks that readers of the scores must know
    # Own names of "subject" (owners) and "scene", by number; results show them.
    names: Mapping[str, Mapping[int, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.inputs:
            raise CommunisError("windows need at least one modality")
        set_field = object.__setattr__  # the dataclass is frozen, but lists are accepted
        for name in ("target", "owner", "split", *ORIGIN):
            set_field(self, name, np.asarray(getattr(self, name)))
        flags = {m: np.asarray(values, bool) for m, values in self.present.items()}
        for name in ("scene", "session", "trial"):
            if not len(getattr(self, name)):
                set_field(self, name, np.zeros(len(self.target), np.int64))
        if not len(self.recording):
            set_field(self, "recording", self.owner)
        if not len(self.start):
            set_field(self, "start", self.seconds * _rank(self.owner))
        self._check_lengths(flags)
        if not np.isin(np.unique(self.split), (TRAIN, VAL, TEST, UNUSED)).all():
            raise CommunisError("split must be 0 (train), 1 (validate), 2 (test) or -1 (unused)")
        self._check_names()
        self._check_target()
        set_field(self, "present", flags | self._sensed(flags))

    @property
    def classes(self) -> Array:
        """(N,) int64: the class of every window; 0 for all windows if the target has no classes."""
        if not self.task.classes:
            return np.zeros(len(self.target), np.int64)
        labels: Array = self.task.labels(torch.from_numpy(np.array(self.target))).numpy()
        return labels

    def _sensed(self, flags: Mapping[Modality, Array]) -> dict[Modality, Array]:
        """Returns the flags of modalities without any finite value in some window. Memory-mapped
        arrays are not read for this: the cache that wrote them knows their flags."""
        corrected = {}
        for m, x in self.inputs.items():
            if isinstance(_root(x), np.memmap):
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                if np.isfinite(np.sum(x)):  # a sum with NaN or Inf is not finite
                    continue
            known = np.asarray(np.isfinite(x).any(tuple(range(1, x.ndim))))
            if not known.all():
                corrected[m] = flags[m] & known if m in flags else known
        return corrected

    def _check_lengths(self, flags: Mapping[Modality, Array]) -> None:
        lengths = {m: len(values) for m, values in self.inputs.items()}
        for name in ("target", "owner", "split", *ORIGIN):
            lengths[name] = len(getattr(self, name))
        for m, values in flags.items():
            lengths[f"present.{m}"] = len(values)
        if len(set(lengths.values())) != 1:
            raise CommunisError(f"arrays of windows have different lengths: {lengths}")
        if not len(self.target):
            raise CommunisError("there are no windows")

    def _check_names(self) -> None:
        bad = [m for m in self.inputs if not nameable(m)]
        if bad:
            raise CommunisError(
                "modality names must be identifiers (letters, digits, _) that are not methods of "
                f"torch modules, got {', '.join(bad)}"
            )
        unknown = [m for m in self.present if m not in self.inputs]
        if unknown:
            raise CommunisError(f"present names modalities without inputs: {', '.join(unknown)}")

    def _check_target(self) -> None:
        if isinstance(self.task, Classification):
            if self.target.ndim != 1 or not np.issubdtype(self.target.dtype, np.integer):
                raise CommunisError(
                    "classes must be whole numbers, one per window; the target has type "
                    f"{self.target.dtype} and shape {self.target.shape}"
                )
            low = int(self.target.min())
            high = int(self.target.max())
            if low < 0 or high >= self.task.classes:
                raise CommunisError(
                    f"targets lie between {low} and {high}, but the task has classes 0 to "
                    f"{self.task.classes - 1}"
                )
            return
        columns = getattr(self.task, "columns", None)
        if self.target.ndim != 2 or columns not in (None, self.target.shape[1]):
            raise CommunisError(
                f"the task expects targets of shape (windows, {columns or 'columns'}), got "
                f"{self.target.shape}"
            )
        if not np.isfinite(self.target).all():
            raise CommunisError("targets must be finite numbers, but one is NaN or Inf")

    def __len__(self) -> int:
        return len(self.target)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        return tuple(sorted(self.inputs))

    @property
    def channels(self) -> dict[Modality, int]:
        return {m: self.inputs[m].shape[1] for m in self.modalities}

    def release(self) -> None:
        """Releases the memory of pages that were read through a read-only map; the data stay on
        disk. Memory therefore does not grow with the number of clients visited."""
        if not hasattr(mmap, "MADV_DONTNEED"):
            return
        roots = {id(root): root for root in map(_root, self.inputs.values())}
        for root in roots.values():
            if isinstance(root, np.memmap) and root.mode == "r":
                root._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def __getstate__(self) -> dict[str, Any]:
        """Memory-mapped arrays are pickled as their place in a file, so that a spawned worker maps
        them again."""
        state = dict(self.__dict__)
        state["inputs"] = {m: _where(values) for m, values in self.inputs.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        inputs = {}
        for m, values in state["inputs"].items():
            inputs[m] = values.open() if isinstance(values, _Mapped) else values
        self.__dict__.update({**state, "inputs": inputs})


@dataclass(frozen=True)
class _Mapped:
    """The place of an array in a file."""

    filename: str
    dtype: str
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def open(self) -> Array:
        raw = np.memmap(self.filename, mode="r", dtype=np.uint8)
        return np.ndarray(self.shape, self.dtype, raw, self.offset, self.strides)


def _where(values: Array) -> Array | _Mapped:
    root = _root(values)
    if not isinstance(root, np.memmap) or root.filename is None or root.mode != "r":
        return values  # a private map may have been changed in memory
    address = values.__array_interface__["data"][0]
    root_address = root.__array_interface__["data"][0]
    offset = address - root_address + root.offset
    return _Mapped(str(root.filename), values.dtype.str, offset, values.shape, values.strides)


def _root(values: Array) -> Array:
    """Returns the array that a view was taken from."""
    while isinstance(values.base, np.ndarray):
        values = values.base
    return values


def _rank(groups: Array) -> Array:
    """Returns the position of each entry within its group."""
    order = np.argsort(groups, kind="stable")
    ranked = groups[order]
    place = np.arange(len(groups)) - np.searchsorted(ranked, ranked)
    rank = np.empty(len(groups), np.float64)
    rank[order] = place
    return rank
