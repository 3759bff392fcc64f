"""The tables of a run's folder: a subfolder per table, in it one parquet file per round."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from communis.core import disk
from communis.core.errors import CommunisError, readable
from communis.exchange.messages import RoundRecord, Scored


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema({"round": pa.int32(), **columns})


NAME = re.compile(r"\d{6}\.parquet")
# A flipped bit must not become another score.
_FORMAT = ds.ParquetFileFormat(
    default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
)
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


def _score(x: Scored) -> tuple[Any, ...]:
    s = x.score
    return x.client, x.split, x.subset, x.own, s.metric, s.label, s.support, s.value


def _fields(x: object) -> tuple[Any, ...]:
    return tuple(vars(x).values())


def write(subfolder: Path, name: str, round: int, rows: Sequence[Any]) -> str:
    """Writes the file of a round, whole or not at all. Returns its digest."""
    values: Callable[[Any], tuple[Any, ...]] = _score if name == "scores" else _fields
    columns = zip(*((round, *values(row)) for row in rows), strict=True)
    table = pa.table([list(column) for column in columns], schema=SCHEMAS[name])
    if not subfolder.exists():
        disk.make_folder(subfolder)
    content = parquet(table)
    disk.write_file(file(subfolder.parent, name, round), content)
    return disk.digest_of(content)


def file(folder: Path, name: str, round: int) -> Path:
    """Returns the path of a round's table."""
    return folder / name / f"{round:06d}.parquet"


def files(folder: Path, name: str) -> dict[int, Path]:
    """Returns the files of a table by round. Files with other names, such as copies that a
    synchronisation tool makes, do not belong to the run."""
    found = {}
    for path in sorted((folder / name).glob("*.parquet")):
        if NAME.fullmatch(path.name):
            found[int(path.stem)] = path
    return found


def parquet(table: pa.Table) -> bytes:
    """Returns the content of a parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read(
    folder: Path,
    name: str,
    records: Sequence[RoundRecord],
    where: pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    rounds: Collection[int] | None = None,
) -> pa.Table:
    """Reads the rows of a table for which the condition `where` holds. columns: only these; rounds:
    only these, without opening the files of others.

    The digests in the records are checked first: the checksums of parquet do not cover its footer,
    and a damaged footer can hide rows or crash the reader."""
    paths = []
    for record in records:
        if rounds is not None and record.round not in rounds:
            continue
        path = file(folder, name, record.round)
        if _belongs(path, name, record):
            paths.append(str(path))
    try:
        table = ds.dataset(paths, SCHEMAS[name], _FORMAT).to_table(columns=columns, filter=where)
        table.validate(full=True)
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise CommunisError(f"{folder / name}: {_damaged(paths)} ({_line(error)})") from None
    incomplete = [column for column in table.column_names if table[column].null_count]
    if incomplete:
        raise CommunisError(f"{folder / name}: its tables lack values of {', '.join(incomplete)}")
    return table


def _belongs(path: Path, name: str, record: RoundRecord) -> bool:
    """Returns whether a file is the table of a round. Refuses a file other than the one that was
    written."""
    if record.tables is None:
        return path.exists()
    if name not in record.tables:
        return False
    try:
        content = path.read_bytes()
    except OSError as error:
        raise disk.DamagedError(
            f"{path}: cannot be read ({error.strerror}), though the record of its round names it; "
            "put back a copy, or run it again"
        ) from None
    digest = record.tables[name]
    if digest and digest != disk.digest_of(content):  # older versions recorded the name only
        raise disk.DamagedError(
            f"{path}: is damaged, or another one's: it does not have the digest that the record of "
            f"round {record.round} holds; put back a copy, or run it again"
        )
    return True


def _damaged(paths: Sequence[str]) -> str:
    """Returns a sentence that names the damaged file."""
    for path in paths:
        try:
            pq.read_table(path, page_checksum_verification=True)
        except (OSError, pa.ArrowException, UnicodeDecodeError):
            return f"{Path(path).name} is no readable table; put back a copy, or run it again"
    return "its tables do not fit together"


def _line(error: Exception) -> str:
    """Returns the beginning of a library's message on one line."""
    return readable(" ".join(str(error).split()), 200)
