"""Tables: what rounds append is what is read, whatever was left behind a recorded block."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from communis import CommunisError, RoundRecord, Score
from communis.core import disk
from communis.exchange.messages import Block, Link, Noted, ScoreColumns, Scored
from communis.run import tables
from communis.run.folder import RunFolder

RECORD = RoundRecord(1, (0,), 0.5, 1, 1, 1, 1.0)


def scored(round: int) -> list[Scored]:
    return [
        Scored(client, split, "acc", True, Score(name, round + client / 10, -1, 5))
        for client in (0, 1)
        for split in ("val", "test")
        for name in ("accuracy", "nll")
    ]


def rounds(folder: Path, *rows: Sequence[Any], name: str = "scores") -> list[RoundRecord]:
    """Records of rounds that wrote these rows."""
    records: list[RoundRecord] = []
    for round, of_round in enumerate(rows, 1):
        end = tables.ends(records).get(name, 0)
        block = tables.append(folder, name, round, of_round, end)
        records.append(replace(RECORD, round=round, tables={name: block}))
    return records


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    records = rounds(tmp_path, scored(1), scored(2))
    found = tables.read(tmp_path, "scores", records)
    assert found.schema == tables.SCHEMAS["scores"]
    assert found["round"].to_pylist() == [1] * 8 + [2] * 8
    assert found["value"].to_pylist() == [s.score.value for r in (1, 2) for s in scored(r)]
    assert found["metric"].to_pylist() == ["accuracy", "nll"] * 8


def test_rows_columns_and_rounds_can_be_chosen(tmp_path: Path) -> None:
    records = rounds(tmp_path, *(scored(round) for round in range(1, 5)))
    where = (pc.field("metric") == "nll") & (pc.field("split") == "test")
    found = tables.read(tmp_path, "scores", records, where, ["client", "value"], {2, 4})
    assert found.to_pydict() == {"client": [0, 1] * 2, "value": [2.0, 2.1, 4.0, 4.1]}
    nothing = tables.read(tmp_path, "scores", records, where, ["value"], {9})
    assert nothing.to_pydict() == {"value": []}


def test_many_blocks_are_read_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory holds what was asked for, not what was read."""
    records = rounds(tmp_path, *(scored(round) for round in range(1, 8)))
    whole = tables.read(tmp_path, "scores", records)
    monkeypatch.setattr(tables, "CHUNK", 2 * records[0].tables["scores"].length)
    assert tables.read(tmp_path, "scores", records).equals(whole)


def test_a_table_is_as_long_as_its_blocks(tmp_path: Path) -> None:
    """What a round that did not end left behind is overwritten, longer or shorter."""
    whole, again = tmp_path / "whole", tmp_path / "again"
    for folder in (whole, again):
        folder.mkdir()
    rounds(whole, scored(1), scored(2))
    for left in (scored(7), scored(7)[:1], scored(7) * 3):
        first = rounds(again, scored(1))[0].tables["scores"]
        tables.append(again, "scores", 2, left, first.end)
        tables.append(again, "scores", 2, scored(2), first.end)
        assert tables.file(again, "scores").read_bytes() == (whole / "scores.arrows").read_bytes()
        tables.cut(again, "scores", first.end)
        assert tables.file(again, "scores").stat().st_size == first.end
    tables.cut(again, "scores", 0)
    assert not tables.file(again, "scores").exists()
    tables.cut(again, "scores", 0)  # nothing to remove


def test_no_links_or_notes_are_rows_too(tmp_path: Path) -> None:
    links = [Link(-1, 0, 100, 5), Link(0, -1, 2**40, 5)]
    records = rounds(tmp_path, links, name="links")
    assert tables.read(tmp_path, "links", records)["payload"].to_pylist() == [100, 2**40]
    notes = [Noted(-1, "ä", math.inf)]
    records = rounds(tmp_path, notes, notes, name="log")
    assert tables.read(tmp_path, "log", records)["name"].to_pylist() == ["ä", "ä"]


def test_a_block_that_cannot_be_is_refused_unread(tmp_path: Path) -> None:
    (record,) = rounds(tmp_path, scored(1))
    huge = replace(record, tables={"scores": Block(0, 10**15, "0" * 32)})
    with pytest.raises(CommunisError, match=r"scores\.arrows: ends too early"):
        tables.read(tmp_path, "scores", [huge])


def test_a_block_of_another_table_is_refused(tmp_path: Path) -> None:
    """Even with the digest that was recorded, as a mistake of our own could make it."""
    (record,) = rounds(tmp_path, [Link(-1, 0, 100, 5)], name="links")
    (tmp_path / "links.arrows").rename(tmp_path / "log.arrows")
    block = record.tables["links"]
    with pytest.raises(CommunisError, match=r"log\.arrows: no readable table"):
        tables.read(tmp_path, "log", [replace(record, tables={"log": block})])


def test_a_folder_goes_on_where_its_records_end(tmp_path: Path) -> None:
    """Also for one who did not write them."""
    disk.write_json(tmp_path / "fleet.json", {})
    for round in (1, 2):
        folder = RunFolder(tmp_path)
        folder.open()
        folder.record(replace(RECORD, round=round), {"scores": scored(round), "links": []})
        folder.close()
    assert RunFolder(tmp_path).scores()["round"].to_pylist() == [1] * 8 + [2] * 8
    with pa.ipc.open_stream(tmp_path / "scores.arrows") as stream:
        assert stream.read_all().num_rows == 16


def test_scores_in_columns_are_the_same_scores() -> None:
    rows = scored(1)
    columns = ScoreColumns.of(rows)
    assert list(columns) == rows
    assert columns[1:3] == rows[1:3]
    assert list(pickle.loads(pickle.dumps(columns))) == rows
    assert ScoreColumns.of(columns) is columns
    unknown = columns.unknown()
    assert all(math.isnan(one.score.value) for one in unknown)
    assert [one.score.metric for one in unknown] == [one.score.metric for one in rows]
    assert list(columns) == rows  # they keep theirs
    columns.extend(columns)
    assert len(columns) == 2 * len(rows)
