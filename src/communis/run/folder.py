"""The folder of a run on disk: its configuration, its measurements and its state.

    config.toml          the configuration with every default written out
    environment.json     versions and machine
    fleet.json           class names; sensors, training windows, model and device of each client
    availability.parquet the intervals in which sensors were missing, drawn or read from the data
    privacy.json         the fields that left the clients, and how they were protected
    records.jsonl        one RoundRecord per line
    scores.arrows        per evaluated round: client x split x modality subset x metric x class
    links.arrows         bytes per link and direction, per round
    clock.arrows         seconds and joules of each client, per round, if devices are known
    log.arrows           diagnostics of clients and server (-1), per round
    pairs.arrows         cosine similarity of clients' updates, if run.pairs is set
    checkpoint.safetensors   server state, and the rounds of the client states that belong to it
    previous.safetensors     the checkpoint before, used if the last one is damaged
    best-000007.safetensors  the state after the best round so far, with `run.keep`
    clients/             private client states (on a real device they stay on the device)
    learned.json, learned/   models and test predictions, with `run.keep`; see learned.py

A checkpoint is put in place only when everything that it relies on is safe from a crash and from a
power cut (disk.py). Checkpoints, private states, JSON files and records contain a digest of their
content. A record holds the digest of what its round appended to each table, and fleet.json that of
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
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
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

from communis.core import diagnostics, disk
from communis.core.claim import Claim
from communis.core.disk import DamagedError
from communis.core.errors import CommunisError
from communis.core.finite import strict
from communis.exchange.messages import Block, RoundRecord
from communis.fleet.clients import FleetClients
from communis.fleet.gaps import kept_trace
from communis.models.kernels import library
from communis.run import tables
from communis.run.backends.executor import StateStore
from communis.run.learned import FOLDER as LEARNED

FORMAT = "4"
RECORDS = "records.jsonl"
BEST = "best"  # the role of a state that is kept, but not continued from
STATES = "clients"  # the tensor of a checkpoint that names the private states belonging to it
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
    """The state of a run after a round."""

    round: int
    experiment: str  # digest of the experiment that it belongs to
    tensors: dict[str, Tensor]
    best: int = 0  # the best round so far, whose state is kept beside; 0: none is

    @property
    def states(self) -> Tensor:
        """The round of each client's private state, (clients,); -1: none."""
        return self.tensors[STATES]


class _ForeignError(DamagedError):
    """A checkpoint of another experiment."""


class _OlderError(CommunisError):
    """A record of a version whose tables had a file per round."""


class RunFolder:
    """Reads and writes the folder of a run. Reading needs only the path; writing needs `open`,
    which locks the folder."""

    def __init__(self, path: Path) -> None:
        try:
            str(path).encode()
        except UnicodeEncodeError:  # otherwise intact files would be reported as damaged
            raise CommunisError(
                f"{path}: this name is not UTF-8, and checkpoints and tables cannot be read from "
                "such a folder; rename it"
            ) from None
        self.path = path
        self._claim: Claim | None = None
        self._ends: dict[str, int] | None = None  # where recorded blocks end, by table
        self._recorded = 0  # bytes of the records, once the blocks are known

    @cached_property
    def experiment(self) -> str:
        """The digest of the experiment that the folder belongs to, as `describe` wrote it; empty in
        folders of older versions. Digests of records and private states depend on it, so that the
        files of another run are not accepted."""
        path = self.path / "fleet.json"
        if not path.exists() and not self._records.exists():  # the run has not begun
            return ""
        return str(self.fleet().get("experiment", ""))

    def fleet(self) -> dict[str, Any]:
        """Returns the content of fleet.json."""
        return disk.read_json(self.path / "fleet.json", mark="experiment")

    def open(self) -> None:
        """Creates the folder and locks it against other writers."""
        self._claim = self._claim or Claim(self.path)
        try:
            self._refuse_links()
        except CommunisError:
            self.close()
            raise

    def _refuse_links(self) -> None:
        """Refuses links where a run writes and removes files, because these would lie elsewhere.
        The folder may be somebody else's. Links in place of other files are replaced."""
        written = [tables.file(self.path, name) for name in tables.SCHEMAS]
        for path in (self._records, self.clients, self.path / LEARNED, *written):
            if path.is_symlink():
                raise CommunisError(
                    f"{path}: is a link, and a run writes and removes files in its own folder "
                    "only; put what it leads to in its place"
                )

    def close(self) -> None:
        """Gives up the lock."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def remove(self) -> None:
        """Deletes the folder; refused while another process uses it. The folder is renamed first,
        because another process could lock a folder that is half deleted."""
        if self.path.is_symlink():
            raise CommunisError(
                f"{self.path}: is a link, so its results are not removed; remove the link, or "
                "choose another folder"
            )
        self.open()
        aside = self.path.with_name(f".{self.path.name}.removed")
        try:
            shutil.rmtree(aside, ignore_errors=True)  # left by a removal that was killed
            self.path.rename(aside)
            (aside / "config.toml").unlink(missing_ok=True)  # without it, the rest is not a run
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

    def describe(
        self, config: str, fleet: FleetClients, experiment: str, more: Mapping[str, Any]
    ) -> None:
        """Writes the configuration, the environment and the fleet. more: further entries of
        fleet.json, such as the topology."""
        self.__dict__.pop("experiment", None)
        trace = kept_trace(fleet.fleet)
        if trace:
            trace.save(self.path / "availability.parquet")
        digests = {"availability": trace.digest() if trace else "", "experiment": experiment}
        disk.write_json(self.path / "fleet.json", {**fleet.describe(), **more, **digests})
        disk.replace_file(self.path / "config.toml", config.encode())
        disk.write_json(self.path / "environment.json", environment(), self.owner)

    def account(self, about: Mapping[str, Any]) -> None:
        """Writes privacy.json: what left the clients, and how it was protected."""
        disk.write_json(self.path / "privacy.json", about, self.owner)

    def accounted(self) -> dict[str, Any]:
        """Returns the content of privacy.json; empty in folders of older versions, and before a
        run has begun."""
        path = self.path / "privacy.json"
        if path.exists():
            return disk.read_json(path, self.owner)
        if self.owner and self._records.exists():
            raise DamagedError(
                f"{path}: is gone, so what left the clients is not known; put back a copy, or run "
                "it again"
            )
        return {}

    def environment(self) -> dict[str, Any]:
        """Returns the versions and the machine that the run began with."""
        return disk.read_json(self.path / "environment.json", self.owner)

    def record(self, record: RoundRecord, rows: Mapping[str, Sequence[Any]]) -> None:
        """Writes the record and the tables of a round. rows: the rows of each table, by name."""
        if self._ends is None:
            self._ends = tables.ends(self.records())
            self._recorded = self._length_of_records()
        if self._length_of_records() != self._recorded:  # to go on would be for nothing
            raise DamagedError(
                f"{self._records}: has {self._length_of_records()} bytes, but this run has written "
                f"{self._recorded}; put back a copy of the file, or begin anew in another folder"
            )
        blocks = {}
        for name, rows_of_table in rows.items():
            if rows_of_table:
                end = self._ends.get(name, 0)
                blocks[name] = tables.append(self.path, name, record.round, rows_of_table, end)
        # The record comes last: a round with a record is complete.
        disk.append(self._records, self._line(replace(record, tables=blocks)))
        self._recorded = self._length_of_records()
        self._ends |= {name: block.end for name, block in blocks.items()}

    def _line(self, record: RoundRecord) -> str:
        """Returns a record as a line of JSON with its digest."""
        content = disk.with_digest(strict(asdict(record)), RECORDS + self.owner)
        return json.dumps(content) + "\n"

    @property
    def owner(self) -> str:
        """The experiment, as digests depend on it; empty in folders of older versions."""
        return f" of {self.experiment}" if self.experiment else ""

    def save(self, checkpoint: Checkpoint) -> None:
        """Puts a checkpoint in place, after records, tables and private states are synced."""
        since = self._checkpoint.stat().st_mtime_ns if self._checkpoint.exists() else 0
        disk.sync(self.path, since)
        if self._checkpoint.exists():
            disk.move(self._checkpoint, self._previous)
        disk.replace_file(self._checkpoint, _packed(checkpoint))

    def save_best(self, best: Checkpoint) -> None:
        """Writes the state after the best round. A checkpoint that names it syncs it first."""
        path = self._best(best.round)
        if not path.exists():
            disk.write_file(path, _packed(best, BEST))

    def best(self, round: int, experiment: str) -> Checkpoint | None:
        """Returns the state after the best round; None if it is lost, which is logged, because the
        run can go on without it."""
        try:
            found = _unpacked(self._best(round), BEST)
            if found.experiment != experiment or found.round != round:
                raise _ForeignError(f"{self._best(round)} is a checkpoint of another experiment")
            self._refuse_lost_states(found)
        except DamagedError as error:
            log.warning("%s; round %d, the best so far, is not kept", error, round)
            return None
        return found

    def forget_best(self, needed: Collection[int]) -> None:
        """Removes the states after rounds that no checkpoint names."""
        kept = {self._best(round) for round in needed}
        for path in self.path.glob("best-*.safetensors"):
            if path not in kept:
                disk.remove(path)

    def _best(self, round: int) -> Path:
        return self.path / f"best-{round:06d}.safetensors"

    def load(self, experiment: str, every: int = 1) -> list[Checkpoint]:
        """Returns the checkpoints that can be continued, the last one first; empty if there is
        none yet. Removes everything that was written after the last one. If the last checkpoint is
        damaged, the one before it takes its place, and the rounds between are repeated with the
        same results. every: the number of rounds between two checkpoints."""
        checkpoints: list[Checkpoint] = []
        damage: list[str] = []
        foreign = False
        for path in (self._checkpoint, self._previous):
            if path.exists():
                try:
                    checkpoints.append(self._intact(path, experiment))
                except DamagedError as error:
                    foreign |= isinstance(error, _ForeignError)
                    damage.append(str(error))
        if len(checkpoints) == 2:
            try:
                self._check_states(checkpoints[0], since=checkpoints[1].states)
            except DamagedError as error:
                damage.append(str(error))
                del checkpoints[0]
        if foreign and not checkpoints:
            raise CommunisError(
                f"{'; '.join(damage)} (method, fleet, networks, device profiles, weights or seed "
                "differ): choose another folder, or run it as it was. If it was resumed, "
                f"{self.path / 'config.toml'} or the checkpoint was replaced: put back a copy"
            )
        if damage and not checkpoints:
            raise DamagedError(f"{'; '.join(damage)}; begin anew in another folder")
        if not checkpoints:
            self._refuse_lost_checkpoint(every)
        for text in damage:
            what = text.partition("; ")[0]  # the rest is advice for when nothing can be continued
            log.warning("%s; going on from round %d", what, checkpoints[0].round)
        if damage and checkpoints:
            disk.replace_file(self._checkpoint, _packed(checkpoints[0]))
        self._forget_after(checkpoints[0].round if checkpoints else 0)
        # Others were not synced: a power cut may have emptied them.
        self.forget_best([checkpoint.best for checkpoint in checkpoints])
        return checkpoints

    def _refuse_lost_checkpoint(self, every: int) -> None:
        """Refuses records of more rounds than there can be without a checkpoint: to begin anew
        would remove them."""
        if not self._records.exists():
            return
        done = len(self._content_of_records().splitlines())
        if done > every:
            raise DamagedError(
                f"{self._checkpoint}: is gone, though there are records of {done} rounds; put back "
                f"a copy, or begin anew in another folder (or here, without {RECORDS})"
            )

    def _check_states(self, checkpoint: Checkpoint, since: Tensor) -> None:
        """Reads the private states that are newer than those of an earlier checkpoint; raises
        DamagedError if one is damaged."""
        store = StateStore(self.clients, checkpoint.experiment)
        for client in torch.nonzero(checkpoint.states != since).flatten().tolist():
            store.read(client, int(checkpoint.states[client]))

    def _intact(self, path: Path, experiment: str) -> Checkpoint:
        """Returns a checkpoint of this experiment whose content and records are complete."""
        checkpoint = _unpacked(path)
        if checkpoint.experiment != experiment:
            raise _ForeignError(f"{path} is a checkpoint of another experiment")
        self._refuse_lost(self.records(checkpoint.round), checkpoint.round)
        self._refuse_lost_states(checkpoint)
        return checkpoint

    def _refuse_lost_states(self, checkpoint: Checkpoint) -> None:
        """Refuses a checkpoint whose private states are gone, such as an older one that somebody
        has put back. What they hold is checked where they are read."""
        store = StateStore(self.clients, checkpoint.experiment)
        for client, round in enumerate(checkpoint.states.tolist()):
            if round >= 0 and not store.path(client, round).exists():
                store.read(client, round)  # says what is lost

    def complete_records(self) -> list[RoundRecord]:
        """Returns all records. Refuses a folder in which a record up to the last checkpoint, or a
        table that a record names, is lost. Later records are those of a run that still goes on or
        that was killed."""
        records = self.records()
        saved = self.saved()
        self._refuse_lost([record for record in records if record.round <= saved], saved)
        self._refuse_lost_tables(records)
        return records

    def _refuse_lost(self, records: Sequence[RoundRecord], saved: int) -> None:
        """Refuses records that do not cover every round up to the checkpoint of round `saved`."""
        rounds = [record.round for record in records]
        if rounds != list(range(1, saved + 1)):
            raise DamagedError(
                f"{self._records}: the checkpoint is of round {saved}, but there are records of "
                f"{_ranges(rounds)} only, so what was spent, sent and scored is not known; put "
                "back a copy of the file, or begin anew in another folder"
            )

    def _refuse_lost_tables(self, records: Sequence[RoundRecord]) -> None:
        for name in tables.SCHEMAS:
            tables.check_length(self.path, name, records)

    def saved(self) -> int:
        """Returns the round of the last checkpoint without reading its tensors; 0 if there is
        none."""
        try:
            with safe_open(disk.regular(self._checkpoint), framework="pt") as file:
                return int(json.loads((file.metadata() or {})["communis"])["round"])
        except (SafetensorError, OSError, KeyError, ValueError, TypeError):
            return 0

    def last(self) -> Checkpoint:
        """Returns the last checkpoint; raises DamagedError if its digest does not match."""
        return _unpacked(self._checkpoint)

    def tensor(self, name: str) -> Tensor | None:
        """Returns one tensor of the last checkpoint; None if there is no such tensor."""
        if not self._checkpoint.exists():
            return None
        return self.last().tensors.get(name)

    def paid(self) -> list[int]:
        """The rounds of which the log says what they cost in privacy."""
        names = [diagnostics.PRIVACY_MU.name, diagnostics.PRIVACY_Z.name]
        table = self.log(pc.field("name").isin(names))
        found: list[int] = pc.unique(table["round"]).to_pylist()
        return sorted(found)

    def records(self, until: int | None = None) -> list[RoundRecord]:
        """Returns all complete records, or those up to the round `until`. A last line that a crash
        cut short is skipped, and so is everything after `until`, which a power cut may have
        damaged."""
        records: list[RoundRecord] = []
        if not self._records.exists():
            return records
        lines = self._content_of_records().splitlines()
        for number, line in enumerate(lines, 1):
            last = records[-1].round if records else 0
            if until is not None and last >= until:
                break
            try:
                records.append(self._record_in(line, number))
            except DamagedError:
                if number == len(lines):
                    break
                raise
        if until is None:
            return records
        return [record for record in records if record.round <= until]

    def records_after(self, place: int, lines: int) -> Iterator[tuple[RoundRecord, int]]:
        """Yields the records that follow this byte of the file and whose lines have ended, each
        with the byte after it: for whoever looks on while a run writes. lines: how many lines come
        before."""
        try:
            with disk.regular(self._records).open("rb") as file:
                file.seek(place)
                content = file.read()
        except FileNotFoundError:
            return
        *ended, _ = content.split(b"\n")
        for number, line in enumerate(ended, lines + 1):
            place += len(line) + 1
            yield self._record_in(line, number), place

    def _record_in(self, line: bytes, number: int) -> RoundRecord:
        """Returns the record in a line of the file."""
        try:
            return _record(line, self.owner)
        except _OlderError:
            raise CommunisError(
                f"{self._records}: was written by a version before format {FORMAT}, whose "
                "tables have a file per round: read it with that version, or run it again"
            ) from None
        except _UNREADABLE as error:
            raise DamagedError(
                f"{self._records}:{number} is not a record that this version wrote for the "
                f"experiment of fleet.json ({type(error).__name__}: {error}); put back a copy "
                "of the file, or begin anew in another folder"
            ) from None

    def _content_of_records(self) -> bytes:
        try:
            return disk.regular(self._records).read_bytes()
        except OSError as error:
            raise DamagedError(
                f"{self._records}: cannot be read ({error.strerror}); put back a copy of the file, "
                "or begin anew in another folder"
            ) from None

    def _length_of_records(self) -> int:
        return self._records.stat().st_size if self._records.exists() else 0

    def scores(
        self,
        where: pc.Expression | None = None,
        columns: Sequence[str] | None = None,
        rounds: Collection[int] | None = None,
    ) -> pa.Table:
        """Returns the scores of all rounds, or a part of them as in `tables.read`: the scores of a
        long run take much memory."""
        return tables.read(self.path, "scores", self.records(), where, columns, rounds)

    def links(
        self, where: pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Returns the bytes of every link and round."""
        return tables.read(self.path, "links", self.records(), where, columns)

    def clock(self) -> pa.Table:
        """Returns seconds and joules of every client and round; empty if no devices are known."""
        return tables.read(self.path, "clock", self.records())

    def log(self, where: pc.Expression | None = None) -> pa.Table:
        """Returns the diagnostics of clients and server (-1)."""
        return tables.read(self.path, "log", self.records(), where)

    def pairs(self) -> pa.Table:
        """Returns the cosine similarity between the updates of any two clients."""
        return tables.read(self.path, "pairs", self.records())

    def _forget_after(self, round: int) -> None:
        """Removes everything that belongs to later rounds, and files that were only half
        written."""
        records = self.records(round)
        if self._records.exists():
            kept = "".join(self._line(record) for record in records).encode()
            if kept != self._content_of_records():
                disk.replace_file(self._records, kept)
        for partial in self.path.glob("*.partial"):
            disk.remove(partial)
        self._refuse_lost_tables(records)
        self._ends = tables.ends(records)
        self._recorded = self._length_of_records()
        for name in tables.SCHEMAS:
            tables.cut(self.path, name, self._ends.get(name, 0))


def _packed(checkpoint: Checkpoint, role: str = "") -> bytes:
    """Returns the content of a checkpoint's file. role: BEST, or empty for one to continue from."""
    tensors = {
        key: tensor.detach().cpu().contiguous().clone()
        for key, tensor in checkpoint.tensors.items()
    }
    about = {"format": FORMAT, "round": checkpoint.round, "experiment": checkpoint.experiment}
    if checkpoint.best:
        about["best"] = checkpoint.best
    if role:
        about["role"] = role
    about["digest"] = _digest(about, tensors)
    # One entry, because safetensors does not keep the order of several.
    return safetensors.torch.save(tensors, {"communis": json.dumps(about)})


def _unpacked(path: Path, role: str = "") -> Checkpoint:
    """Reads a checkpoint's file; raises DamagedError if it is not what `_packed` returned for this
    role."""
    try:
        with safe_open(disk.regular(path), framework="pt") as file:
            about = json.loads((file.metadata() or {})["communis"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - not a mapping
        written = about.pop("digest", "")
        if about["format"] != FORMAT:
            raise CommunisError(
                f"{path} has format {about['format']}, this version reads {FORMAT}: finish the "
                "run with the version that began it, or begin anew in another folder"
            )
        checkpoint = Checkpoint(
            int(about["round"]), str(about["experiment"]), tensors, int(about.get("best", 0))
        )
        intact = written == _digest(about, tensors) and STATES in tensors
        own = about.get("role", "") == role
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedError(f"{path} is not a readable checkpoint ({error})") from None
    if not intact:
        raise DamagedError(f"{path} is damaged: its content does not match its digest")
    if not own:
        raise DamagedError(f"{path} has the content of another file of its run")
    return checkpoint


def _digest(about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Returns the digest of a checkpoint's header and tensors."""
    digest = blake2b(json.dumps(about, sort_keys=True).encode(), digest_size=disk.DIGEST)
    for key in sorted(tensors):
        tensor = tensors[key]
        digest.update(repr((key, str(tensor.dtype), tuple(tensor.shape))).encode())
        # As bytes, because NumPy lacks some of torch's types.
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _record(line: bytes, owner: str) -> RoundRecord:
    """Reads a line that `RunFolder._line` wrote for this owner."""
    table = json.loads(line.decode("utf-8"))
    raw = disk.without_digest(table, RECORDS + owner, required=bool(owner))
    raw["tables"] = _blocks(raw.get("tables"))
    raw["cohort"] = tuple(raw["cohort"])
    raw["refused"] = tuple((client, why) for client, why in raw["refused"])
    for key in _MAY_BE_NAN:
        raw[key] = _number(raw.get(key))
    raw["scores"] = {key: _number(value) for key, value in raw["scores"].items()}
    return RoundRecord(**raw)


def _blocks(found: Any) -> dict[str, Block]:
    """Reads where the rows of a round lie, as a record has it."""
    if not isinstance(found, dict) or any(isinstance(block, str) for block in found.values()):
        raise _OlderError
    blocks = {}
    for name, block in found.items():
        start = block["start"]
        length = block["length"]
        if type(start) is not int or type(length) is not int or start < 0 or length < 0:
            raise ValueError(f"tables.{name}: a block at {start} of length {length}")
        blocks[str(name)] = Block(start, length, str(block["digest"]))
    return blocks


def _ranges(rounds: Sequence[int]) -> str:
    """Returns rounds in words, such as "1 to 4 and 6"."""
    parts: list[list[int]] = []
    for round in rounds:
        if parts and round == parts[-1][-1] + 1:
            parts[-1].append(round)
        else:
            parts.append([round])
    words = [f"{p[0]} to {p[-1]}" if len(p) > 1 else str(p[0]) for p in parts]
    return " and ".join(words) or "no round"


def environment() -> dict[str, Any]:
    """Returns the versions and the machine that a run is made with."""
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
        "convolution": library.description(),
        "versions": versions,
    }


def _number(value: float | None) -> float:
    """Returns NaN for None, which stands for it in JSON (`strict`)."""
    return math.nan if value is None else value
