"""The tables of a run's folder: one parquet file per round in a room of that name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from communis.core import disk
from communis.core.errors import CommunisError, readable
from communis.exchange.messages import Scored


def _schema(**columns: pa.DataType) -> pa.Schema:
    return pa.schema({"round": pa.int32(), **columns})


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


def write(room: Path, name: str, round: int, things: Sequence[Any]) -> None:
    """The room has a file of this round: written whole or not at all."""
    row: Callable[[Any], tuple[Any, ...]] = _score if name == "scores" else _fields
    columns = zip(*((round, *row(thing)) for thing in things), strict=True)
    table = pa.table([list(column) for column in columns], schema=SCHEMAS[name])
    if not room.exists():
        disk.make_folder(room)
    disk.write_file(file(room.parent, name, round), parquet(table))


def file(folder: Path, name: str, round: int) -> Path:
    """Where a round's table is."""
    return folder / name / f"{round:06d}.parquet"


def rounds(folder: Path, name: str) -> Collection[int]:
    """The rounds of which a room has a table."""
    return {int(path.stem) for path in (folder / name).glob("*.parquet") if path.stem.isdigit()}


def parquet(table: pa.Table) -> bytes:
    """A table as the content of a file."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, write_page_checksum=True)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read(
    folder: Path,
    name: str,
    where: pc.Expression | None = None,
    columns: Sequence[str] | None = None,
    rounds: Collection[int] | None = None,
) -> pa.Table:
    """The rows of a room of which the condition `where` holds. columns: only these; rounds: only
    these, and the files of others are not opened."""
    paths = sorted(map(str, (folder / name).glob("*.parquet")))
    if rounds is not None:
        paths = [path for path in paths if int(Path(path).stem) in rounds]
    try:
        dataset = ds.dataset(paths, SCHEMAS[name], _FORMAT)
        _refuse_strays(dataset)
        found = dataset.to_table(columns=columns, filter=where)
        found.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        raise CommunisError(f"{folder / name}: {_damaged(paths)} ({_line(error)})") from None
    empty = [column for column in found.column_names if found[column].null_count]
    if empty:
        raise CommunisError(f"{folder / name}: its tables lack values of {', '.join(empty)}")
    return found


def _refuse_strays(dataset: Any) -> None:
    """Refuses a file with rows of another round than the one that it is named after."""
    for fragment in dataset.get_fragments():
        path = Path(fragment.path)
        for group in fragment.row_groups:  # the scan needs their statistics too
            known = group.statistics.get("round", {})
            there = [known[key] for key in ("min", "max") if key in known]
            if any(round != int(path.stem) for round in there):
                raise CommunisError(
                    f"{path}: its rows are of round {there[0]}, not of the round that it is named "
                    "after; put back a copy, or run it again"
                )


def _damaged(paths: Sequence[str]) -> str:
    """Which of these files is to blame, in a sentence."""
    for path in paths:
        try:
            pq.read_table(path, page_checksum_verification=True)
        except (OSError, pa.ArrowException):
            return f"{Path(path).name} is no readable table; the scores of its round are lost"
    return "its tables do not fit together"


def _line(error: Exception) -> str:
    """The beginning of what a library says, in one line."""
    return readable(" ".join(str(error).split()), 200)
