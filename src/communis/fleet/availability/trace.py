"""Trace: when which sensor of which client was missing, as intervals of time.

A trace can be drawn, saved as a Parquet file, loaded and replayed. An interval holds its beginning
and not its end; those of one sensor do not overlap.
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
from communis.core.disk import replace_file
from communis.core.errors import CommunisError

SPLITS = ("train", "val", "test")
FORMAT = b"communis.trace"


@dataclass(frozen=True)
class Trace:
    modalities: tuple[Modality, ...]
    seconds: Array  # (clients, 3): length of each client's timeline per split
    client: Array  # (intervals,) int64
    modality: Array  # (intervals,) int64: place in `modalities`
    split: Array  # (intervals,) int64: place in SPLITS
    start: Array  # (intervals,) float64, seconds on the client's timeline
    end: Array  # (intervals,) float64
    whole: tuple[bool, bool, bool] = (False, False, False)  # per split: centres decide on windows
    least: tuple[float, float, float] = (0.5, 0.5, 0.5)  # per split: samples a window must have

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
        """(intervals, 2): start and end of what this sensor misses, in order."""
        if modality not in self.modalities or not 0 <= client < len(self.seconds):
            raise CommunisError(
                f"the trace is of {len(self.seconds)} clients with {', '.join(self.modalities)}; "
                f"it has no client {client} with {modality}"
            )
        chain = (client * self._width + self.modalities.index(modality)) * 3 + split
        return self._edges[2 * self._first[chain] : 2 * self._first[chain + 1]].reshape(-1, 2)

    def missing(self, client: int, modality: Modality, split: int, times: Array) -> Array:
        """Whether the sensor is missing at these seconds of the client's timeline, bool."""
        edges = self.intervals(client, modality, split).ravel()
        gone: Array = np.searchsorted(edges, times, side="right") % 2 == 1
        return gone

    def digest(self) -> str:
        """Equal for equal traces."""
        found = hashlib.sha256(repr((self.modalities, self.whole, self.least)).encode())
        for name in ("seconds", "client", "modality", "split", "start", "end"):
            found.update(np.ascontiguousarray(getattr(self, name)).tobytes())
        return found.hexdigest()

    def share(self) -> Array:
        """(clients, modalities, 3): the share of its time that each sensor is missing."""
        shape = (len(self.seconds), self._width, 3)
        total = np.bincount(self._chain, self.end - self.start, int(np.prod(shape))).reshape(shape)
        share: Array = total / np.maximum(self.seconds[:, None, :], np.finfo(float).tiny)
        return share

    def save(self, path: Path) -> None:
        names, splits = np.array(self.modalities, object), np.array(SPLITS, object)
        about = {"version": 1, "modalities": self.modalities, "whole": self.whole}
        about["least"] = self.least
        table = pa.table(
            {
                "client": self.client,
                "modality": pa.array(names[self.modality], pa.string()),
                "split": pa.array(splits[self.split], pa.string()),
                "start": self.start,
                "end": self.end,
            }
        )
        about["seconds"] = self.seconds.tolist()
        table = table.replace_schema_metadata({FORMAT: json.dumps(about)})
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        replace_file(path, sink.getvalue().to_pybytes())

    @classmethod
    def load(cls, path: Path) -> Trace:
        if not path.exists():
            raise CommunisError(f"{path}: there is no such trace")
        try:
            table = pq.read_table(path)
        except (OSError, pa.ArrowException) as error:
            raise CommunisError(f"{path}: cannot be read as a trace: {error}") from None
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
                f"{path}: not a trace that communis saved; it lacks {error}"
            ) from None
        except (CommunisError, ValueError, TypeError) as error:
            raise CommunisError(f"{path}: not a sound trace: {error}") from None


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
    """Each cell's place among `names`."""
    encoded = _column(table, name, pa.string()).dictionary_encode()
    found = encoded.dictionary.to_pylist()
    if unknown := [one for one in found if one not in names]:
        raise CommunisError(f"unknown {name} {', '.join(unknown)}; expected {', '.join(names)}")
    places = np.array([names.index(one) for one in found], np.int64)
    which: Array = np.asarray(encoded.indices)
    return places[which]
