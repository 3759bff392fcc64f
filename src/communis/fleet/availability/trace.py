"""Trace: the time intervals in which the sensors of each client are missing.

A trace can be drawn, saved as a Parquet file, loaded and replayed. An interval includes its start
and excludes its end; the intervals of one sensor do not overlap.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.disk import regular, replace_file
from communis.core.errors import CommunisError, plain

SPLITS = ("train", "val", "test")
FORMAT = b"communis.trace"


@dataclass(frozen=True)
class Trace:
    """The missing intervals of all sensors, sorted by client, modality, split and start."""

    modalities: tuple[Modality, ...]
    seconds: Array  # (clients, 3): length of each client's timeline per split
    client: Array  # (intervals,) int64
    modality: Array  # (intervals,) int64: index in `modalities`
    split: Array  # (intervals,) int64: index in SPLITS
    start: Array  # (intervals,) float64, seconds on the client's timeline
    end: Array  # (intervals,) float64
    # Per split: a window is missing as a whole, if its centre is, instead of sample by sample.
    by_window: tuple[bool, bool, bool] = (False, False, False)
    least: tuple[float, float, float] = (0.5, 0.5, 0.5)  # per split: share of samples that a
    # window needs to count as present

    def __post_init__(self) -> None:
        for name, limit in (("client", len(self.seconds)), ("modality", self._width), ("split", 3)):
            values = getattr(self, name)
            if len(values) != len(self.start) or ((values < 0) | (values >= limit)).any():
                raise CommunisError(f"trace: a {name} is not one of 0 to {limit - 1}")
        if len(self.start) != len(self.end) or not (self.start < self.end).all():
            raise CommunisError("trace: an interval does not end after its start")
        if not np.isfinite(self.end - self.start).all():
            raise CommunisError("trace: an interval is not finite")
        if not self._in_order():
            order = np.lexsort((self.start, self._chain))
            for name in ("client", "modality", "split", "start", "end"):
                object.__setattr__(self, name, getattr(self, name)[order])
            if not self._in_order():
                raise CommunisError("trace: two intervals of one sensor overlap")

    def _in_order(self) -> bool:
        step = np.diff(self._chain)
        apart = self.end[:-1] <= self.start[1:]
        return bool(((step > 0) | ((step == 0) & apart)).all())

    @property
    def _width(self) -> int:
        return len(self.modalities)

    @property
    def _chain(self) -> Array:
        chain: Array = (self.client * self._width + self.modality) * 3 + self.split
        return chain

    @cached_property
    def _first(self) -> Array:
        return np.searchsorted(self._chain, np.arange(len(self.seconds) * self._width * 3 + 1))

    @cached_property
    def _edges(self) -> Array:
        return np.column_stack([self.start, self.end]).ravel()

    def intervals(self, client: int, modality: Modality, split: int) -> Array:
        """Returns (intervals, 2): start and end of the missing intervals of a sensor, in order."""
        if modality not in self.modalities or not 0 <= client < len(self.seconds):
            raise CommunisError(
                f"the trace is of {len(self.seconds)} clients with {', '.join(self.modalities)}; "
                f"it has no client {client} with {modality}"
            )
        chain = (client * self._width + self.modalities.index(modality)) * 3 + split
        return self._edges[2 * self._first[chain] : 2 * self._first[chain + 1]].reshape(-1, 2)

    def missing(self, client: int, modality: Modality, split: int, times: Array) -> Array:
        """Returns, for each of these seconds of the client's timeline, whether the sensor is
        missing."""
        edges = self.intervals(client, modality, split).ravel()
        gone: Array = np.searchsorted(edges, times, side="right") % 2 == 1
        return gone

    def digest(self) -> str:
        """Returns a hash that is equal for equal traces."""
        digest = hashlib.sha256(repr((self.modalities, self.by_window, self.least)).encode())
        for name in ("seconds", "client", "modality", "split", "start", "end"):
            digest.update(np.ascontiguousarray(getattr(self, name)).tobytes())
        return digest.hexdigest()

    def share(self) -> Array:
        """Returns (clients, modalities, 3): the share of its time that each sensor is missing."""
        shape = (len(self.seconds), self._width, 3)
        total = np.bincount(self._chain, self.end - self.start, int(np.prod(shape))).reshape(shape)
        share: Array = total / np.maximum(self.seconds[:, None, :], np.finfo(float).tiny)
        return share

    def save(self, path: Path) -> None:
        """Writes the trace to a Parquet file."""
        names = np.array(self.modalities, object)
        splits = np.array(SPLITS, object)
        about = {
            "version": 1,
            "modalities": self.modalities,
            "whole": self.by_window,
            "least": self.least,
            "seconds": self.seconds.tolist(),
        }
        table = pa.table(
            {
                "client": self.client,
                "modality": pa.array(names[self.modality], pa.string()),
                "split": pa.array(splits[self.split], pa.string()),
                "start": self.start,
                "end": self.end,
            }
        )
        table = table.replace_schema_metadata({FORMAT: json.dumps(about)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        replace_file(path, sink.getvalue().to_pybytes())

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Reads a trace from a Parquet file that `save` wrote."""
        if not path.exists():
            raise CommunisError(f"{path}: there is no such trace")
        try:
            table = pq.read_table(regular(path))
        except (OSError, pa.ArrowException) as error:
            raise CommunisError(f"{path}: cannot be read as a trace: {plain(error)}") from None
        try:
            about = json.loads((table.schema.metadata or {})[FORMAT])
            if about["version"] != 1:
                raise CommunisError(f"its version is {about['version']}, expected 1")
            names = tuple(about["modalities"])
            return cls(
                names,
                np.array(about["seconds"], float).reshape(-1, 3),
                _numbers(table, "client", pa.int64()),
                _places(table, "modality", names),
                _places(table, "split", SPLITS),
                _numbers(table, "start", pa.float64()),
                _numbers(table, "end", pa.float64()),
                tuple(about["whole"]),
                tuple(about["least"]),
            )
        except KeyError as error:
            raise CommunisError(
                f"{path}: not a trace that was saved by communis; it lacks {error}"
            ) from None
        except (CommunisError, ValueError, TypeError) as error:
            raise CommunisError(f"{path}: not a valid trace: {error}") from None


def _column(table: Any, name: str, kind: Any) -> Any:
    column = table[name]
    if column.null_count:
        raise CommunisError(f"column {name} has empty cells")
    if column.type != kind:
        raise CommunisError(f"column {name} is {column.type}, expected {kind}")
    return column.combine_chunks()


def _numbers(table: Any, name: str, kind: Any) -> Array:
    return np.asarray(_column(table, name, kind))


def _places(table: Any, name: str, names: tuple[str, ...]) -> Array:
    """Returns the index of each cell in `names`."""
    encoded = _column(table, name, pa.string()).dictionary_encode()
    values = encoded.dictionary.to_pylist()
    if unknown := [value for value in values if value not in names]:
        raise CommunisError(f"unknown {name} {', '.join(unknown)}; expected {', '.join(names)}")
    places = np.array([names.index(value) for value in values], np.int64)
    indices: Array = np.asarray(encoded.indices)
    return places[indices]
