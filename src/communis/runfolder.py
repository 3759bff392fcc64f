"""A run's folder on disk: everything that was configured, measured and learned.

    config.toml          what was asked for, every default written out
    environment.json     versions and machine
    fleet.json           class names; every client's sensors, training windows, model and device
    availability.parquet when which sensor was missing, drawn or as the data brought it
    records.jsonl        one RoundRecord per line
    scores/*.parquet     per evaluated round: client x split x modality subset x metric x class
    links/*.parquet      bytes per link and direction, per round
    checkpoint.safetensors   server state and which client states belong to it
    clients/             private client states (on a real device they would be on the device)

Files are written under another name and moved into place, so a crash leaves the last good version.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from communis.core import CommunisError
from communis.exchange import Link, RoundRecord, Scored
from communis.fleet import BoundFleet
from communis.fleet.gaps import kept_trace

FORMAT = "1"


@dataclass(frozen=True)
class Checkpoint:
    round: int
    tensors: dict[str, Tensor]


class RunFolder:
    """Reading needs nothing but the path; `open` makes the rooms and takes the lock to write."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: int | None = None

    def open(self) -> None:
        for room in (self.path, self.path / "scores", self.path / "links"):
            room.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.path / "lock", os.O_CREAT | os.O_RDWR)
        if not _locked(self._lock):
            raise CommunisError(f"{self.path}: another process is working on this run")

    def close(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def clients(self) -> Path:
        return self.path / "clients"

    @property
    def _records(self) -> Path:
        return self.path / "records.jsonl"

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def describe(self, config: str, fleet: BoundFleet) -> None:
        """Writes the configuration, the environment and the fleet."""
        about = json.dumps(fleet.describe(), indent=1)
        replace_file(self.path / "fleet.json", about.encode())
        replace_file(self.path / "config.toml", config.encode())
        replace_file(self.path / "environment.json", json.dumps(environment(), indent=2).encode())
        if trace := kept_trace(fleet.fleet):
            trace.save(self.path / "availability.parquet")

    def record(
        self,
        record: RoundRecord,
        links: Sequence[Link],
        scores: Sequence[Scored],
    ) -> None:
        _write_table(
            self.path / "links" / f"{record.round:06d}.parquet", link_rows(record.round, links)
        )
        if scores:
            _write_table(
                self.path / "scores" / f"{record.round:06d}.parquet",
                score_rows(record.round, scores),
            )
        # Last: a round that has a record is complete.
        with self._records.open("a", encoding="utf-8") as file:
            file.write(json.dumps(strict(asdict(record))) + "\n")

    def save(self, round: int, experiment: str, tensors: Mapping[str, Tensor]) -> None:
        """experiment: what the checkpoint belongs to; see `load`."""
        contiguous = {
            key: tensor.detach().cpu().contiguous().clone() for key, tensor in tensors.items()
        }
        # In one entry, because the order of several is not kept.
        about = json.dumps({"format": FORMAT, "round": round, "experiment": experiment})
        data = safetensors.torch.save(contiguous, {"communis": about})
        replace_file(self._checkpoint, data)

    def load(self, experiment: str) -> Checkpoint | None:
        """The last checkpoint, with everything that was written after it removed; None if there is
        none."""
        if not self._checkpoint.exists():
            self._forget_after(0)  # a crash before the first checkpoint
            return None
        try:
            with safe_open(self._checkpoint, framework="pt") as file:
                about = json.loads((file.metadata() or {})["communis"])
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise CommunisError(
                f"{self._checkpoint} is not readable ({error}); start a new run"
            ) from None
        if about["format"] != FORMAT:
            raise CommunisError(
                f"{self._checkpoint} has format {about['format']}, this version reads {FORMAT}"
            )
        if about["experiment"] != experiment:
            raise CommunisError(
                f"{self.path} holds a run of another experiment (method, fleet or seed differ): "
                "choose another folder, or run it as it was"
            )
        self._forget_after(about["round"])
        return Checkpoint(about["round"], tensors)

    def records(self) -> list[RoundRecord]:
        """All complete records; a last line cut short by a crash is passed over."""
        found = []
        lines = (
            self._records.read_text(encoding="utf-8").splitlines() if self._records.exists() else []
        )
        for number, line in enumerate(lines, 1):
            try:
                raw = json.loads(line)
            except json.JSONDecodeError:
                if number == len(lines):
                    break
                raise CommunisError(f"{self._records}:{number} is not a record") from None
            raw["cohort"], raw["refused"] = (
                tuple(raw["cohort"]),
                tuple((c, why) for c, why in raw["refused"]),
            )
            raw["loss"] = _number(raw["loss"])
            raw["scores"] = {key: _number(value) for key, value in raw["scores"].items()}
            found.append(RoundRecord(**raw))
        return found

    def scores(self, where: pc.Expression | None = None) -> pa.Table:
        """What was scored, round by round; `where` a condition on the columns holds."""
        return _read_tables(self.path / "scores", SCORES, where)

    def links(self) -> pa.Table:
        return _read_tables(self.path / "links", LINKS)

    def _forget_after(self, round: int) -> None:
        if not self._records.exists():
            return
        kept = [record for record in self.records() if record.round <= round]
        lines = (json.dumps(strict(asdict(record))) + "\n" for record in kept)
        replace_file(self._records, "".join(lines).encode())
        for room in ("scores", "links"):
            for path in (self.path / room).glob("*.parquet"):
                if int(path.stem) > round:
                    path.unlink()


SCORES = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.int32()),
        ("split", pa.string()),
        ("subset", pa.string()),
        ("own", pa.bool_()),  # the subset is all that the client owns
        ("metric", pa.string()),
        ("class", pa.int32()),  # -1: all
        ("support", pa.int64()),
        ("value", pa.float64()),
    ]
)
LINKS = pa.schema(
    [(name, pa.int64()) for name in ("round", "sender", "receiver", "payload", "framing")]
)


def score_rows(round: int, scores: Iterable[Scored]) -> pa.Table:
    rows = [
        (round, x.client, x.split, x.subset, x.own, s.metric, s.label, s.support, s.value)
        for x in scores
        for s in [x.score]
    ]
    return _table(rows, SCORES)


def link_rows(round: int, links: Iterable[Link]) -> pa.Table:
    rows = [(round, x.sender, x.receiver, x.payload, x.framing) for x in links]
    return _table(rows, LINKS)


def environment() -> dict[str, Any]:
    versions = {}
    for name in ("communis", "torch", "numpy", "safetensors", "pyarrow", "pandas"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "torch_cpu": torch.backends.cpu.get_cpu_capability(),
        "versions": versions,
    }


def _number(value: float | None) -> float:
    """The reverse of `strict`."""
    return math.nan if value is None else value


def strict(value: Any) -> Any:
    """The same with NaN and Inf, which JSON does not know, as None."""
    if isinstance(value, Mapping):
        return {key: strict(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [strict(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def replace_file(path: Path, data: bytes) -> None:
    """The file holds `data`, or what it held before."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def _locked(file: int) -> bool:
    """An exclusive lock for this process; the system releases it when the process ends. Where
    there are no such locks (Windows), none is taken."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _table(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else [()] * len(schema)
    return pa.table([list(column) for column in columns], schema=schema)


def _write_table(path: Path, table: pa.Table) -> None:
    partial = path.with_name(path.name + ".partial")
    pq.write_table(table, partial)
    partial.replace(path)


def _read_tables(room: Path, schema: pa.Schema, where: pc.Expression | None = None) -> pa.Table:
    paths = sorted(map(str, room.glob("*.parquet")))
    return ds.dataset(paths, schema, "parquet").to_table(filter=where)
