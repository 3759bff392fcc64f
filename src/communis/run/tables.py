"""The tables of a run's folder: one file per table, to which every round appends its rows.

A file is a stream of Arrow record batches, so that `pyarrow.ipc.open_stream(path).read_pandas()`
reads it whole. The rows of a round are a block of bytes in it that the record of the round names by
place, length and digest. What follows the last recorded block was written by a round that did not
end; the next block takes its place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from communis.core import disk
from communis.core.errors import CommunisError, readable
from communis.exchange.messages import Block, RoundRecord, ScoreColumns


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema({"round": pa.int32(), **columns})


CHUNK = 1 << 20  # bytes of blocks that are decoded at once
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
_END_OF_STREAM = 8  # bytes that a stream ends with; a file that grows has none
_id, _text, _number = pa.int32(), pa.string(), pa.float64()
SCHEMAS: Mapping[str, pa.Schema] = {
    "scores": _schema(
        client=_id,
        split=_text,
        subset=_text,
        own=pa.bool_(),  # the subset is all that the client owns
        metric=_text,
        **{"class": _id},  # -1: all
        support=pa.int64(),
        value=_number,
    ),
    "links": pa.schema(
        [(name, pa.int64()) for name in ("round", "sender", "receiver", "payload", "framing")]
    ),
    "clock": _schema(
        client=_id, compute=_number, down=_number, up=_number, idle=_number, joules=_number
    ),
    "log": _schema(client=_id, name=_text, value=_number),  # client -1: the server
    "pairs": _schema(group=_text, one=_id, other=_id, cosine=_number),
}


def file(folder: Path, name: str) -> Path:
    """Returns the path of a table."""
    return folder / f"{name}.arrows"


def append(folder: Path, name: str, round: int, rows: Sequence[Any], end: int) -> Block:
    """Writes the rows of a round, whole or not at all. end: where the recorded blocks of the file
    end; what follows is overwritten."""
    return append_table(folder, name, _table(name, round, rows), end)


def append_table(folder: Path, name: str, table: pa.Table, end: int) -> Block:
    """Writes rows that are an Arrow table already."""
    content = _encoded(name, table)
    head = _head(name)
    if not end:
        disk.write_at(file(folder, name), head + content, 0)
        return Block(len(head), len(content), disk.digest_of(content))
    disk.write_at(file(folder, name), content, end)
    return Block(end, len(content), disk.digest_of(content))


def cut(folder: Path, name: str, end: int) -> None:
    """Removes what follows the recorded blocks of a table."""
    path = file(folder, name)
    if not path.exists():
        return
    if not end:
        disk.remove(path)
    elif path.stat().st_size > end:
        disk.write_at(path, b"", end)


def ends(records: Sequence[RoundRecord]) -> dict[str, int]:
    """Returns where the recorded blocks of every table end."""
    found: dict[str, int] = {}
    for record in records:
        for name, block in record.tables.items():
            found[name] = block.end
    return found


def read(
    folder: Path,
    name: str,
    records: Sequence[RoundRecord],
    where: pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    rounds: Collection[int] | None = None,
) -> pa.Table:
    """Reads the rows of a table for which the condition `where` holds. columns: only these; rounds:
    only these, without reading the blocks of others.

    The digests in the records are checked before anything is decoded: damaged blocks could hide
    rows or crash the reader."""
    schema = SCHEMAS[name]
    shown = schema.names if columns is None else list(columns)
    asked = [r for r in records if name in r.tables and (rounds is None or r.round in rounds)]
    parts = [schema.empty_table().select(shown)]
    for chunk in _chunks(file(folder, name), name, asked):
        try:
            stored = pa.ipc.open_stream(pa.py_buffer(_head(name) + chunk)).read_all()
            stored.validate(full=True)
            table = stored.cast(schema)
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            raise CommunisError(
                f"{file(folder, name)}: no readable table ({_line(error)}); put back a copy, or "
                "run it again"
            ) from None
        kept = table if where is None else table.filter(where)
        parts.append(kept.select(shown))
    found = pa.concat_tables(parts)
    incomplete = [column for column in shown if found[column].null_count]
    if incomplete:
        raise CommunisError(f"{file(folder, name)}: lacks values of {', '.join(incomplete)}")
    return found


def check_length(folder: Path, name: str, records: Sequence[RoundRecord]) -> None:
    """Refuses a table that ends before the last block that the records name."""
    path = file(folder, name)
    length = path.stat().st_size if path.exists() else 0
    lost = [r.round for r in records if name in r.tables and r.tables[name].end > length]
    if lost:
        what = "ends too early" if path.exists() else "is gone"
        raise disk.DamagedError(
            f"{path}: {what}, though the record of round {lost[0]} names it ({len(lost)} rounds "
            "in all), so that results would be incomplete; put back a copy, or run it again"
        )


def _table(name: str, round: int, rows: Sequence[Any]) -> pa.Table:
    """Returns the rows of a round as an Arrow table."""
    if name == "scores":
        columns = ScoreColumns.of(rows).columns()
    else:
        fields = (vars(row).values() for row in rows)
        columns = [list(column) for column in zip(*fields, strict=True)]
    return pa.table([[round] * len(rows), *columns], schema=SCHEMAS[name])


@cache
def _stored(name: str) -> pa.Schema:
    """Returns the schema of a table in its file: every text is stored once per round."""
    coded = pa.dictionary(pa.int32(), pa.string())
    fields = [pa.field(f.name, coded if f.type == _text else f.type) for f in SCHEMAS[name]]
    return pa.schema(fields)


@cache
def _head(name: str) -> bytes:
    """Returns what the file of a table begins with: its schema."""
    return _stream(_stored(name), [])[:-_END_OF_STREAM]


def _encoded(name: str, table: pa.Table) -> bytes:
    """Returns a block: the record batch of these rows with its texts."""
    stored = table.cast(_stored(name)).combine_chunks()
    content = _stream(_stored(name), stored.to_batches())
    return content[len(_head(name)) : -_END_OF_STREAM]


def _stream(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=_OPTIONS) as writer:
        for batch in batches:
            writer.write_batch(batch)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _chunks(path: Path, name: str, records: Sequence[RoundRecord]) -> Iterator[bytes]:
    """Yields the blocks of these rounds, many at once."""
    if not records:
        return
    check_length(path.parent, name, records)
    blocks: list[bytes] = []
    try:
        with disk.regular(path).open("rb") as stream:
            for record in records:
                block = record.tables[name]
                stream.seek(block.start)
                blocks.append(stream.read(block.length))
                _check(path, blocks[-1], block, record.round)
                if sum(map(len, blocks)) > CHUNK:
                    yield b"".join(blocks)
                    blocks = []
    except OSError as error:
        raise disk.DamagedError(
            f"{path}: cannot be read ({error.strerror}), though the record of round "
            f"{records[0].round} names it; put back a copy, or run it again"
        ) from None
    yield b"".join(blocks)


def _check(path: Path, content: bytes, block: Block, round: int) -> None:
    """Refuses bytes other than those that were written."""
    if disk.digest_of(content) != block.digest:
        raise disk.DamagedError(
            f"{path}: is damaged, or another one's: the rows of round {round} do not have the "
            "digest that its record holds; put back a copy, or run it again"
        )


def _line(error: Exception) -> str:
    """Returns the beginning of a library's message on one line."""
    return readable(" ".join(str(error).split()), 200)
