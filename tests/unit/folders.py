"""Run folders made by hand, for tests of what is read from them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa

from communis import RoundRecord, Score
from communis.core import disk
from communis.exchange.messages import Block, Link, Scored
from communis.run import tables
from communis.run.folder import RECORDS, RunFolder
from communis.run.learned import Index, LearnedFolder, RoundLearned

History = Mapping[str, Sequence[Mapping[int, float]]]  # "test.accuracy": by round, by client


def records_in(path: Path) -> list[dict[str, Any]]:
    """The records of a folder without their digests, so that they can be changed."""
    lines = (path / RECORDS).read_text("utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    for record in records:
        record.pop(disk.DIGEST_KEY, None)
    return records


def write_records(path: Path, records: Sequence[Mapping[str, Any]]) -> None:
    text = "".join(json.dumps(record) + "\n" for record in records)
    (path / RECORDS).write_text(text, "utf-8")
    seal(path / RECORDS)


def rows_of(path: Path, round: int) -> pa.Table:
    """The rows of a round in the file of a table."""
    return tables.read(path.parent, path.stem, RunFolder(path.parent).records(), rounds=[round])


def block_of(path: Path, round: int) -> Block:
    """Where the rows of a round lie in the file of a table."""
    (record,) = [r for r in RunFolder(path.parent).records() if r.round == round]
    return record.tables[path.stem]


def forge_rows(path: Path, round: int, rows: pa.Table) -> None:
    """Replaces the rows of a round, and their digest in the records, as somebody would who wants
    other values to be believed."""
    known = [r.round for r in RunFolder(path.parent).records() if path.stem in r.tables]
    found = {number: rows_of(path, number) for number in known}
    found[round] = rows
    records = records_in(path.parent)
    path.unlink()
    end = 0
    for record in records:
        if record["round"] in found:
            block = tables.append_table(path.parent, path.stem, found[record["round"]], end)
            record["tables"][path.stem] = asdict(block)
            end = block.end
    write_records(path.parent, records)


def seal(path: Path) -> None:
    """Gives an edited JSON file of a folder the digests of its content, as somebody could who wants
    it to be believed. What is not JSON stays as it is."""
    name = path.name if path.name == "fleet.json" else path.name + RunFolder(path.parent).owner
    text = path.read_text("utf-8", errors="surrogateescape")
    lines = text.splitlines() if path.suffix == ".jsonl" else [text]
    sealed = [_sealed(line, name) + "\n" for line in lines]
    path.write_text("".join(sealed), "utf-8", errors="surrogateescape")


def _sealed(text: str, name: str) -> str:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not isinstance(table, dict):
        return text
    table.pop(disk.DIGEST_KEY, None)
    return json.dumps(disk.with_digest(table, name))


def keep(
    path: Path,
    clients: Sequence[int],
    target: Sequence[Any],
    scores: Sequence[Sequence[float]],
    best: Sequence[Sequence[float]] = (),
) -> None:
    """Keeps test predictions in the folder of a run: the client, the target and the scores of every
    window after the last round, and after the best one, the first, if it has other scores."""
    learned = LearnedFolder(path, RunFolder(path).owner)
    learned.folder.mkdir()
    rows = np.arange(len(clients))
    recorded = SimpleNamespace(target=np.array(target), recording=rows, start=rows)
    last = len(RunFolder(path).records())
    rounds = {}
    for number, given in {last: scores, **({1: best} if best else {})}.items():
        found = [
            (client, rows[np.array(clients) == client],
             np.array(given, np.float16)[np.array(clients) == client])
            for client in dict.fromkeys(clients)
        ]  # fmt: skip
        named = learned._write_predictions(number, found, recorded)  # type: ignore[arg-type]
        rounds[number] = RoundLearned(number, {}, *named)
    learned.write_index(Index(last, 1 if best else 0, {}, rounds))


def write(
    path: Path,
    method: str,
    seed: int,
    history: History,
    *,
    cell: Mapping[str, str] | None = None,
    variant: str = "",
    settings: str = "",
    fleet: Mapping[str, Any] | None = None,
    levels: Mapping[str, Sequence[str]] | None = None,
    metric: str = "",
    select: str = "",
    data: str = "d",
    eval_clients: int = 0,
    target: float = 0.0,
    cohort: tuple[int, ...] = (0, 1),
    seconds: Sequence[float] = (),
    joules: Sequence[float] = (),
    rows: Mapping[str, Sequence[Sequence[Any]]] | None = None,
    refused: tuple[tuple[int, str], ...] = ((1, "NaN"),),
) -> Path:
    """A run in which every round with scores was evaluated. settings: more lines of its [method].
    `test.f1.2` is of class 2. seconds, joules: by the device clock, round by round; rows: by room
    and round, what else is written there."""
    folder = RunFolder(path)
    folder.open()
    (path / "records.jsonl").unlink(missing_ok=True)  # of a run that was written there before
    about = {"labels": [], "pooled": False, "clients": [], **(fleet or {})}
    disk.write_json(path / "fleet.json", about)
    rounds = len(next(iter(history.values())))
    for i in range(rounds):
        scores = [
            Scored(client, split, "acc", True, Score(name, value, int(label or -1), support=9))
            for key, values in history.items()
            for split, name, label in [(*key.split("."), "")[:3]]
            for client, value in values[i].items()
        ]
        means = {
            key: fmean(values[i].values())
            for key, values in history.items()
            if values[i] and key.count(".") == 1
        }
        record = RoundRecord(
            i + 1,
            cohort,
            0.5,
            100,
            300,
            10,
            2.0,
            virtual_seconds=seconds[i] if seconds else math.nan,
            virtual_joules=joules[i] if joules else math.nan,
            refused=refused,
            scores=means,
        )
        found = {"links": [Link(-1, 0, 100, 5), Link(0, -1, 300, 5)], "scores": scores}
        for room, by_round in (rows or {}).items():
            found[room] = [*found.get(room, ()), *by_round[i]]
        folder.record(record, found)
    folder.close()
    lines = ['name = "x"', f"seed = {seed}"]
    named = {"variant": variant, "metric": metric, "select": select}
    lines += [f'{key} = "{value}"' for key, value in named.items() if value]
    lines += [f"target = {target}"] if target else []
    lines += ["[method]", f'name = "{method}"', settings, "[run]", f"rounds = {rounds}"]
    lines += [f"eval_clients = {eval_clients}", "[data]", f'name = "{data}"']
    if cell:
        lines += ["[cell]", *(f'{axis} = "{level}"' for axis, level in cell.items())]
        lines += ["[fleet]", f"levels = {json.dumps(list(cell.values()))}"]
    if levels:
        lines += ["[levels]", *(f"{axis} = {json.dumps(found)}" for axis, found in levels.items())]
    (path / "config.toml").write_text("\n".join(lines) + "\n")
    disk.write_json(path / "environment.json", {"python": "3"})
    return path
