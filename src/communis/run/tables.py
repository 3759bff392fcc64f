"""The tables of a run's folder: a subfolder per table, in it one parquet file per round."""

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


def write(subfolder: Path, name: str, round: int, rows: Sequence[Any]) -> None:
    """Writes the file of a round, whole or not at all."""
    values: Callable[[Any], tuple[Any, ...]] = _score if name == "scores" else _fields
    columns = zip(*((round, *values(row)) for row in rows), strict=True)
    table = pa.table([list(column) for column in columns], schema=SCHEMAS[name])
    if not subfolder.exists():
        disk.make_folder(subfolder)
    disk.write_file(file(subfolder.parent, name, round), parquet(table))


def file(folder: Path, name: str, round: int) -> Path:
    """Returns the path of a round's table."""
    return folder / name / f"{round:06d}.parquet"


def rounds(folder: Path, name: str) -> Collection[int]:
    """Returns the rounds for which a table has a file."""
    return {int(path.stem) for path in (folder / name).glob("*.parquet") if path.stem.isdigit()}


def parquet(table: pa.Table) -> bytes:
    """Returns the content of a parquet file."""
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
    """Reads the rows of a table for which the condition `where` holds. columns: only these; rounds:
    only these, without opening the files of others."""
    paths = sorted(map(str, (folder / name).glob("*.parquet")))
    if rounds is not None:
        paths = [path for path in paths if int(Path(path).stem) in rounds]
    try:
        dataset = ds.dataset(paths, SCHEMAS[name], _FORMAT)
        _refuse_misnamed(dataset)
        table = dataset.to_table(columns=columns, filter=where)
        table.validate(full=True)
    except (OSError, pa.ArrowException) as error:
        raise CommunisError(f"{folder / name}: {_damaged(paths)} ({_line(error)})") from None
    incomplete = [column for column in table.column_names if table[column].null_count]
    if incomplete:
        raise CommunisError(f"{folder / name}: its tables lack values of {', '.join(incomplete)}")
    return table


def _refuse_misnamed(dataset: Any) -> None:
    """Refuses a file with rows of another round than its name."""
    for fragment in dataset.get_fragments():
        path = Path(fragment.path)
        for group in fragment.row_groups:  # the scan needs their statistics too
            statistics = group.statistics.get("round", {})
            rounds = [statistics[key] for key in ("min", "max") if key in statistics]
            if any(round != int(path.stem) for round in rounds):
                raise CommunisError(
                    f"{path}: its rows are of round {rounds[0]}, not of the round that it is named "
                    "after; put back a copy, or run it again"
                )


def _damaged(paths: Sequence[str]) -> str:
    """Returns a sentence that names the damaged file."""
    for path in paths:
        try:
            pq.read_table(path, page_checksum_verification=True)
        except (OSError, pa.ArrowException):
            return f"{Path(path).name} is no readable table; the scores of its round are lost"
    return "its tables do not fit together"


def _line(error: Exception) -> str:
    """Returns the beginning of a library's message on one line."""
    return readable(" ".join(str(error).split()), 200)
