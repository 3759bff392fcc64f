"""Windows: fixed-length pieces of recordings, side by side, with their split. Arrays may be
memory-mapped."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from communis.core import CommunisError, Modality, Task
from communis.data.recording import Array, Dataset, Recording
from communis.tasks import Classification

TRAIN, VAL, TEST = 0, 1, 2


@dataclass(frozen=True)
class Windows:
    inputs: Mapping[Modality, Array]  # (N, channels, ...) float32
    target: Array  # (N,) int64 or (N, columns) float32
    owner: Array  # (N,) int64: subject, or whoever else the windows belong to
    split: Array  # (N,) int8: TRAIN, VAL or TEST
    task: Task
    present: Mapping[Modality, Array] = field(default_factory=dict)  # (N,) bool; not named: always
    labels: tuple[str, ...] = ()  # class names

    def __post_init__(self) -> None:
        if not self.inputs:
            raise CommunisError("windows need at least one modality")
        set_field = object.__setattr__  # the dataclass is frozen, but lists are welcome
        for name in ("target", "owner", "split"):
            set_field(self, name, np.asarray(getattr(self, name)))
        flags = {m: np.asarray(values, bool) for m, values in self.present.items()}
        set_field(self, "present", flags)
        lengths = {m: len(values) for m, values in self.inputs.items()}
        lengths |= {"target": len(self.target), "owner": len(self.owner), "split": len(self.split)}
        lengths |= {f"present.{m}": len(values) for m, values in flags.items()}
        if len(set(lengths.values())) != 1:
            raise CommunisError(f"windows of unequal number: {lengths}")
        if not len(self.target):
            raise CommunisError("there are no windows")
        if not np.isin(np.unique(self.split), (TRAIN, VAL, TEST)).all():
            raise CommunisError("split must be 0 (train), 1 (validate) or 2 (test)")
        self._check_names()
        self._check_target()

    def _check_names(self) -> None:
        taken = nn.ModuleDict()  # a modality names a module
        bad = [m for m in self.inputs if not m.isidentifier() or hasattr(taken, m)]
        if bad:
            raise CommunisError(
                "modality names must be identifiers (letters, digits, _) that no module method "
                f"has, got {', '.join(bad)}"
            )
        unknown = [m for m in self.present if m not in self.inputs]
        if unknown:
            raise CommunisError(f"present names modalities without inputs: {', '.join(unknown)}")

    def _check_target(self) -> None:
        if isinstance(self.task, Classification):
            if self.target.ndim != 1 or not np.issubdtype(self.target.dtype, np.integer):
                raise CommunisError(
                    f"classes are whole numbers, one per window; the target is "
                    f"{self.target.dtype} {self.target.shape}"
                )
            low, high = int(self.target.min()), int(self.target.max())
            if low < 0 or high >= self.task.classes:
                raise CommunisError(
                    f"targets lie between {low} and {high}, but the task has classes 0 to "
                    f"{self.task.classes - 1}"
                )
            return
        columns = getattr(self.task, "columns", None)
        if self.target.ndim != 2 or columns not in (None, self.target.shape[1]):
            raise CommunisError(
                f"the task expects targets of {columns} columns, got {self.target.shape}"
            )
        if not np.isfinite(self.target).all():
            raise CommunisError("a target is NaN or Inf")

    def __len__(self) -> int:
        return len(self.target)

    @property
    def modalities(self) -> tuple[Modality, ...]:
        return tuple(sorted(self.inputs))

    @property
    def channels(self) -> dict[Modality, int]:
        return {m: self.inputs[m].shape[1] for m in self.modalities}

    def release(self) -> None:
        """Gives back the memory of pages that were read through a read-only map; they stay on
        disk. So memory does not grow with the number of clients visited."""
        for root in {id(r): r for r in map(_root, self.inputs.values())}.values():
            if isinstance(root, np.memmap) and root.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
                root._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]

    def __getstate__(self) -> dict[str, Any]:
        """Memory-mapped arrays are pickled as where they lie, so that a spawned worker maps them
        again."""
        state = dict(self.__dict__)
        state["inputs"] = {m: _where(values) for m, values in self.inputs.items()}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state["inputs"] = {
            m: v.open() if isinstance(v, _Mapped) else v for m, v in state["inputs"].items()
        }
        self.__dict__.update(state)


@dataclass(frozen=True)
class _Mapped:
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
    start = (
        values.__array_interface__["data"][0] - root.__array_interface__["data"][0] + root.offset
    )
    return _Mapped(str(root.filename), values.dtype.str, start, values.shape, values.strides)


def _root(values: Array) -> Array:
    """The array that a view was taken from."""
    while isinstance(values.base, np.ndarray):
        values = values.base
    return values


def cut(
    dataset: Dataset, seconds: float, shares: tuple[float, float, float] = (0.6, 0.2, 0.2)
) -> Windows:
    """Windows without overlap; within each recording the first part trains, the next validates, the
    last tests.

    Time is never shuffled, so no test window lies between training windows.
    """
    for recording in dataset.recordings:
        lacks = [m for m in dataset.modalities if m not in recording.streams]
        if lacks:
            raise CommunisError(f"a recording of subject {recording.subject} lacks {lacks}")
        if min(recording.rates.values()) * seconds < 1:
            raise CommunisError(f"a window of {seconds} s holds no step")
    parts = [_pieces(recording, seconds) for recording in dataset.recordings]
    counts = [len(next(iter(part.values()))) for part in parts]
    if not sum(counts):
        longest = max(r.seconds for r in dataset.recordings)
        raise CommunisError(
            f"no recording holds a window of {seconds} s; the longest has {longest:.1f} s"
        )
    inputs = {m: np.concatenate([part[m] for part in parts]) for m in dataset.modalities}
    repeat = np.repeat(np.arange(len(parts)), counts)
    return Windows(
        inputs=inputs,
        target=np.array([r.label for r in dataset.recordings], np.int64)[repeat],
        owner=np.array([r.subject for r in dataset.recordings], np.int64)[repeat],
        split=np.concatenate([_split(n, shares) for n in counts]),
        task=Classification(len(dataset.labels)),
        labels=dataset.labels,
    )


def _pieces(recording: Recording, seconds: float) -> dict[Modality, Array]:
    count = int(recording.seconds / seconds + 1e-9)
    pieces = {}
    for m, values in recording.streams.items():
        steps = seconds * recording.rates[m]
        starts = np.floor(np.arange(count) * steps + 1e-6).astype(np.int64)
        rows = starts[:, None] + np.arange(int(steps + 1e-6))
        pieces[m] = np.asarray(values, np.float32)[rows].transpose(0, 2, 1)
    return pieces


def _split(count: int, shares: tuple[float, float, float]) -> Array:
    bounds = np.round(np.cumsum(shares)[:2] / sum(shares) * count).astype(int)
    return np.searchsorted(bounds, np.arange(count), side="right").astype(np.int8)
