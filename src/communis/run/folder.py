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
    previous.safetensors     the checkpoint before it, continued if the last one is damaged
    clients/             private client states (on a real device they would be on the device)

A checkpoint is put in place when all that it relies on is safe from a crash and from a power cut
(disk.py). Checkpoints, private states, JSON files and records carry a digest of their content,
tables a checksum per page; a record names the tables of its round, and fleet.json has the digest of
the trace in availability.parquet.
"""

from __future__ import annotations

import json
import logging
import math
import os
import platform
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from communis.core import disk
from communis.core.claim import Claim
from communis.core.disk import DamagedError
from communis.core.errors import CommunisError
from communis.core.finite import strict
from communis.exchange.messages import RoundRecord
from communis.fleet.clients import FleetClients
from communis.fleet.gaps import kept_trace
from communis.run import tables
from communis.run.backends.executor import StateStore

FORMAT = "2"
RECORDS = "records.jsonl"
STATES = "clients"  # the tensor of a checkpoint that says which private states belong to it
log = logging.getLogger("communis")
_UNREADABLE = (
    ValueError, TypeError, KeyError, AttributeError, RecursionError, DamagedError,
)  # fmt: skip
_MAY_BE_NAN = (
    "loss", "seconds_aggregation", "virtual_seconds", "virtual_joules", "consensus_distance",
    "attack_distance",
)  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    round: int
    experiment: str  # what it belongs to
    tensors: dict[str, Tensor]

    @property
    def states(self) -> Tensor:
        """(clients,) the round of each client's private state; -1: none."""
        return self.tensors[STATES]


class RunFolder:
    """Reading needs nothing but the path; `open` makes the rooms and takes the lock to write."""

    def __init__(self, path: Path) -> None:
        try:
            str(path).encode()
        except UnicodeEncodeError:  # else sound files in it would seem to be damaged
            raise CommunisError(
                f"{path}: this name is not UTF-8, and checkpoints and tables cannot be read from "
                "such a folder; rename it"
            ) from None
        self.path = path
        self._claim: Claim | None = None

    def open(self) -> None:
        self._claim = self._claim or Claim(self.path)

    def close(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def remove(self) -> None:
        """The folder with all that is in it; refused while somebody else works on it. It is moved
        away first: in a folder that is half gone, another process could take a new lock."""
        self.open()
        aside = self.path.with_name(f".{self.path.name}.removed")
        try:
            shutil.rmtree(aside, ignore_errors=True)  # of a removal that was killed
            self.path.rename(aside)
            (aside / "config.toml").unlink(missing_ok=True)  # what is left now is no run
            shutil.rmtree(aside)
        finally:
            self.close()

    @property
    def clients(self) -> Path:
        return self.path / "clients"

    @property
    def _records(self) -> Path:
        return self.path / RECORDS

    @property
    def _checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def _previous(self) -> Path:
        return self.path / "previous.safetensors"

    def describe(self, config: str, fleet: FleetClients, more: Mapping[str, Any]) -> None:
        """Writes the configuration, the environment and the fleet. more: who hears whom, and who is
        scored."""
        trace = kept_trace(fleet.fleet)
        if trace:
            trace.save(self.path / "availability.parquet")
        known = {"availability": trace.digest() if trace else ""}
        disk.write_json(self.path / "fleet.json", {**fleet.describe(), **more, **known})
        disk.replace_file(self.path / "config.toml", config.encode())
        disk.write_json(self.path / "environment.json", environment())

    def account(self, about: Mapping[str, Any]) -> None:
        """Writes what left the clients and what of it is protected."""
        disk.write_json(self.path / "privacy.json", about)

    def accounted(self) -> dict[str, Any]:
        """What was written so; empty in folders of older versions."""
        path = self.path / "privacy.json"
        return disk.read_json(path) if path.exists() else {}

    def record(self, record: RoundRecord, rows: Mapping[str, Sequence[Any]]) -> None:
        """rows: what belongs into the room of that name."""
        for room, found in rows.items():
            if found:
                tables.write(self.path / room, room, record.round, found)
        # Last: a round that has a record is complete.
        disk.append(self._records, _line(record))

    def save(self, checkpoint: Checkpoint) -> None:
        """What was written before is made safe first: rounds, tables and private states."""
        since = self._checkpoint.stat().st_mtime_ns if self._checkpoint.exists() else 0
        disk.sync(self.path, since)
        if self._checkpoint.exists():
            disk.move(self._checkpoint, self._previous)
        disk.replace_file(self._checkpoint, _packed(checkpoint))

    def load(self, experiment: str) -> list[Checkpoint]:
        """The checkpoints that can be continued, the last one first, with everything that was
        written after it removed; empty if there is none. A last one that is damaged is passed over
        in favour of the one before: the rounds between come out the same again."""
        found, damage = [], []
        for path in (self._checkpoint, self._previous):
            if path.exists():
                try:
                    found.append(self._sound(path, experiment))
                except DamagedError as error:
                    damage.append(str(error))
        if len(found) == 2:
            try:
                self._check_states(found[0], since=found[1].states)
            except DamagedError as error:
                damage.append(str(error))
                del found[0]
        if damage and not found:
            raise DamagedError(f"{'; '.join(damage)}; begin anew in another folder")
        for text in damage:
            what = text.partition("; ")[0]  # the rest says what to do where nothing helps
            log.warning("%s; going on from round %d", what, found[0].round)
        if damage and found:
            disk.replace_file(self._checkpoint, _packed(found[0]))
        self._forget_after(found[0].round if found else 0)
        return found

    def _check_states(self, checkpoint: Checkpoint, since: Tensor) -> None:
        """The private states that are newer than those of an earlier checkpoint are whole."""
        store = StateStore(self.clients)
        for client in torch.nonzero(checkpoint.states != since).flatten().tolist():
            store.read(client, int(checkpoint.states[client]))

    def _sound(self, path: Path, experiment: str) -> Checkpoint:
        """A checkpoint whose content is what was written, and what it relies on is there."""
        checkpoint = _unpacked(path)
        if checkpoint.experiment != experiment:
            raise CommunisError(
                f"{self.path} holds a run of another experiment (method, fleet, device profiles, "
                "weights or seed differ): choose another folder, or run it as it was"
            )
        self._refuse_lost(self.records(checkpoint.round), checkpoint.round)
        return checkpoint

    def complete_records(self) -> list[RoundRecord]:
        """All records; refused if one of a round up to the last checkpoint is lost, or a table that
        one names. Records and tables of later rounds are those of a run that goes on, or that was
        killed."""
        found, saved = self.records(), self.saved()
        self._refuse_lost([record for record in found if record.round <= saved], saved)
        self._refuse_lost_tables(found)
        return found

    def _refuse_lost(self, records: Sequence[RoundRecord], saved: int) -> None:
        """saved: the round of a checkpoint."""
        rounds = [record.round for record in records]
        if rounds != list(range(1, saved + 1)):
            raise DamagedError(
                f"{self._records}: the checkpoint is of round {saved}, but there are records of "
                f"{_ranges(rounds)} only, so what was spent, sent and scored is not known; put "
                "back a copy of the file, or begin anew in another folder"
            )

    def _refuse_lost_tables(self, records: Sequence[RoundRecord]) -> None:
        for room in tables.SCHEMAS:
            there = tables.rounds(self.path, room)
            lost = [r.round for r in records if room in (r.tables or ()) and r.round not in there]
            if lost:
                raise DamagedError(
                    f"{tables.file(self.path, room, lost[0])}: is gone, though the record of round "
                    f"{lost[0]} names it ({len(lost)} such files in all), so that results would be "
                    "incomplete; put back a copy, or run it again"
                )

    def saved(self) -> int:
        """The round of the last checkpoint, without reading it; 0 if there is none."""
        try:
            with safe_open(self._checkpoint, framework="pt") as file:
                return int(json.loads((file.metadata() or {})["communis"])["round"])
        except (SafetensorError, OSError, KeyError, ValueError, TypeError):
            return 0

    def last(self) -> Checkpoint:
        """The last checkpoint; DamagedError if its content is not what was written."""
        return _unpacked(self._checkpoint)

    def tensor(self, name: str) -> Tensor | None:
        """One tensor of the last checkpoint; None if there is no such thing."""
        if not self._checkpoint.exists():
            return None
        return self.last().tensors.get(name)

    def paid(self) -> list[int]:
        """The rounds of which the log says what they cost in privacy."""
        table = self.log(pc.field("name").isin(["privacy/mu", "privacy/z"]))
        found: list[int] = pc.unique(table["round"]).to_pylist()
        return sorted(found)

    def records(self, until: int | None = None) -> list[RoundRecord]:
        """All complete records, or those of rounds up to `until`; a last line cut short by a crash
        is passed over, and so is what a power cut left behind those rounds."""
        found: list[RoundRecord] = []
        if not self._records.exists():
            return found
        lines = self._records.read_bytes().splitlines()
        for number, line in enumerate(lines, 1):
            if until is not None and found and found[-1].round >= until:
                break
            try:
                found.append(_record(line))
            except _UNREADABLE as error:
                if number == len(lines):
                    break
                raise DamagedError(
                    f"{self._records}:{number} is not a record that this version wrote "
                    f"({type(error).__name__}: {error}); put back a copy of the file, or begin "
                    "anew in another folder"
                ) from None
        return found if until is None else [record for record in found if record.round <= until]

    def scores(
        self,
        where: pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        rounds: Collection[int] | None = None,
    ) -> pa.Table:
        """What was scored, round by round, or a part of it, as in `tables.read`: all of a long run
        is a lot."""
        return tables.read(self.path, "scores", where, columns, rounds)

    def links(
        self, where: pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """What every link carried, round by round."""
        return tables.read(self.path, "links", where, columns)

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
        """Removes what belongs to later rounds, and files that were never put in place."""
        if self.clients.exists():
            StateStore(self.clients).forget_firsts(round)
        if self._records.exists():
            kept = "".join(_line(record) for record in self.records(round)).encode()
            if kept != self._records.read_bytes():
                disk.replace_file(self._records, kept)
        for partial in self.path.glob("*.partial"):
            disk.remove(partial)
        for room in tables.SCHEMAS:
            for path in (self.path / room).glob("*.parquet*"):
                if path.suffix == ".partial" or int(path.stem) > round:
                    disk.remove(path)


def _packed(checkpoint: Checkpoint) -> bytes:
    """The content of a checkpoint's file."""
    tensors = {
        key: tensor.detach().cpu().contiguous().clone()
        for key, tensor in checkpoint.tensors.items()
    }
    about = {"format": FORMAT, "round": checkpoint.round, "experiment": checkpoint.experiment}
    about["digest"] = _digest(about, tensors)
    # In one entry, because the order of several is not kept.
    return safetensors.torch.save(tensors, {"communis": json.dumps(about)})


def _unpacked(path: Path) -> Checkpoint:
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads((file.metadata() or {})["communis"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
        written = about.pop("digest", "")
        if about["format"] != FORMAT:
            raise CommunisError(
                f"{path} has format {about['format']}, this version reads {FORMAT}: finish the "
                "run with the version that began it, or begin anew in another folder"
            )
        checkpoint = Checkpoint(int(about["round"]), str(about["experiment"]), tensors)
        sound = written == _digest(about, tensors) and STATES in tensors
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is not a readable checkpoint ({error})") from None
    if not sound:
        raise DamagedError(f"{path} is damaged: its content does not have the digest in it")
    return checkpoint


def _digest(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Of all that a checkpoint holds."""
    found = blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=disk.DIGEST)
    for key in sorted(tensors):
        tensor = tensors[key]
        found.update(repr((key, str(tensor.dtype), tuple(tensor.shape))).encode())
        # As bytes, for NumPy has not all kinds of numbers that torch has.
        found.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _line(record: RoundRecord) -> str:
    return json.dumps(disk.with_digest(strict(asdict(record)), RECORDS)) + "\n"


def _record(line: bytes) -> RoundRecord:
    """The reverse of `_line`."""
    raw = disk.without_digest(json.loads(line.decode("utf-8")), RECORDS)
    if raw.get("tables") is not None:
        raw["tables"] = tuple(raw["tables"])
    raw["cohort"] = tuple(raw["cohort"])
    raw["refused"] = tuple((client, why) for client, why in raw["refused"])
    for key in _MAY_BE_NAN:
        raw[key] = _number(raw.get(key))
    raw["scores"] = {key: _number(value) for key, value in raw["scores"].items()}
    return RoundRecord(**raw)


def _ranges(rounds: Sequence[int]) -> str:
    """Rounds in words: "1 to 4 and 6"."""
    parts: list[list[int]] = []
    for round in rounds:
        if parts and round == parts[-1][-1] + 1:
            parts[-1].append(round)
        else:
            parts.append([round])
    said = [f"{p[0]} to {p[-1]}" if len(p) > 1 else str(p[0]) for p in parts]
    return " and ".join(said) or "no round"


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
