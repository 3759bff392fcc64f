"""A run's folder on disk: everything that was configured, measured and learned.

    config.toml          what was asked for, every default written out
    environment.json     versions and machine
    fleet.json           class names; every client's sensors, training windows, model and device
    availability.parquet when which sensor was missing, drawn or as the data brought it
    privacy.json         what left the clients, and what of it was protected how
    records.jsonl        one RoundRecord per line
    scores/*.parquet     per evaluated round: client x split x modality subset x metric x class
    links/*.parquet      bytes per link and direction, per round
    clock/*.parquet      seconds and joules of every client, per round, if devices are known
    log/*.parquet        what clients and server (-1) wrote down, per round
    pairs/*.parquet      how alike two clients' updates are, if asked for (run.pairs)
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from communis import tables
from communis.core import CommunisError
from communis.exchange import RoundRecord
from communis.fleet import BoundFleet
from communis.fleet.gaps import kept_trace

FORMAT = "1"
_MAY_BE_NAN = (
    "loss", "seconds_aggregation", "virtual_seconds", "virtual_joules", "consensus_distance",
    "attack_distance",
)  # fmt: skip


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
        self.path.mkdir(parents=True, exist_ok=True)
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

    def describe(self, config: str, fleet: BoundFleet, topology: Mapping[str, Any]) -> None:
        """Writes the configuration, the environment and the fleet with who hears whom."""
        about = json.dumps({**fleet.describe(), "topology": topology}, indent=1)
        replace_file(self.path / "fleet.json", about.encode())
        replace_file(self.path / "config.toml", config.encode())
        replace_file(self.path / "environment.json", json.dumps(environment(), indent=2).encode())
        if trace := kept_trace(fleet.fleet):
            trace.save(self.path / "availability.parquet")

    def account(self, text: str) -> None:
        """Writes what left the clients and what of it is protected."""
        replace_file(self.path / "privacy.json", text.encode())

    def accounted(self) -> dict[str, Any]:
        """What was written so; empty in folders of older versions."""
        path = self.path / "privacy.json"
        try:
            found: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise CommunisError(f"{path} is not readable: {error}") from None
        return found

    def record(self, record: RoundRecord, rows: Mapping[str, Sequence[Any]]) -> None:
        """rows: what belongs into the room of that name."""
        for room, found in rows.items():
            if found:
                tables.write(self.path / room, room, record.round, found)
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
            for path in self.clients.glob("*.first"):  # what an attacker sent in it
                path.unlink()
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
                f"{self.path} holds a run of another experiment (method, fleet, device profiles, "
                "weights or seed differ): choose another folder, or run it as it was"
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
            for key in _MAY_BE_NAN:
                raw[key] = _number(raw.get(key))
            raw["scores"] = {key: _number(value) for key, value in raw["scores"].items()}
            found.append(RoundRecord(**raw))
        return found

    def scores(self, where: pc.Expression | None = None) -> pa.Table:
        """What was scored, round by round; `where` a condition on the columns holds."""
        return tables.read(self.path, "scores", where)

    def links(self) -> pa.Table:
        return tables.read(self.path, "links")

    def clock(self) -> pa.Table:
        """Seconds and joules of every client, round by round; empty if no devices are known."""
        return tables.read(self.path, "clock")

    def log(self, where: pc.Expression | None = None) -> pa.Table:
        """What clients and server (-1) wrote down."""
        return tables.read(self.path, "log", where)

    def pairs(self) -> pa.Table:
        """How alike the updates of any two clients are."""
        return tables.read(self.path, "pairs")

    def _forget_after(self, round: int) -> None:
        if not self._records.exists():
            return
        kept = [record for record in self.records() if record.round <= round]
        lines = (json.dumps(strict(asdict(record))) + "\n" for record in kept)
        replace_file(self._records, "".join(lines).encode())
        for room in tables.SCHEMAS:
            for path in (self.path / room).glob("*.parquet"):
                if int(path.stem) > round:
                    path.unlink()


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
