"""Tables: chosen columns of a CSV, Parquet or NPY file as arrays; a bad cell is named by its
line."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.memory import room
from communis.core.plugins import nearest
from communis.data.own.manifest import Column, Files
from communis.data.recordings.files import array, reading, shaped, shortened

TEXT = (".csv", ".tsv", ".txt")
NOTHING = {"", "nan", "na", "n/a", "none"}  # cells without a word, in any case
WHOLE = "it may have been cut short, or two of its columns have one name"
PLAIN = "expected lines of plain text in UTF-8, in which no cell is longer than 131,072 characters"
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True)
class Words:
    """A column of few different words, each row by its number; -1: an empty cell."""

    codes: Array  # (rows,) int64
    words: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """What was read of one file."""

    path: Path
    rows: int
    numbers: Mapping[Column, Array]  # (rows,) float32, NaN where a cell is empty
    words: Mapping[Column, Words]
    time: Array | None  # (rows,) float64, seconds
    first: int = 0  # the line of the first row; 0: the file has no lines

    def at(self, row: int) -> str:
        """The place of a row, for errors."""
        return f"{self.path}, line {self.first + row}" if self.first else f"{self.path}, row {row}"


def word(value: object) -> str:
    """A cell as a word: 1, 1.0 and " 1" are the same."""
    text = str(value).strip()
    whole = re.fullmatch(r"(-?\d+)\.0*", text)
    return whole[1] if whole else text


def header(path: Path, how: Files) -> tuple[str, ...]:
    """The names of the columns; numbers as text where there are none."""
    if path.suffix.lower() == ".npy":
        return tuple(str(i) for i in range(rows_of(path).shape[1]))
    if path.suffix.lower() == ".parquet":
        with reading(path, "Parquet file", WHOLE):
            return tuple(parquet(path).schema_arrow.names)
    if path.suffix.lower() not in TEXT:
        raise CommunisError(f"{path}: not a CSV, Parquet or NPY file by its ending")
    with reading(path, "text file", PLAIN), path.open(encoding="utf-8-sig", newline="") as lines:
        row = next(csv.reader(islice(lines, how.skip, None), delimiter=how.delimiter), None)
    if not row:
        raise CommunisError(f"{path}: empty")
    return tuple(c.strip() if how.header else str(i) for i, c in enumerate(row))


def read(
    path: Path,
    how: Files,
    numbers: Sequence[Column] = (),
    words: Sequence[Column] = (),
    time: Column | None = None,
) -> Table:
    """The columns that are asked for."""
    names = header(path, how)
    place = {c: _index(path, names, c, how) for c in (*numbers, *words)}
    clock = [] if time is None else [_index(path, names, time, how)]
    as_text = {place[c] for c in words} | set(clock if how.time_unit == "date" else [])
    wanted = sorted({*place.values(), *clock})
    if path.suffix.lower() == ".npy":
        columns, first = {i: rows_of(path)[:, i] for i in wanted}, 0
    elif path.suffix.lower() == ".parquet":
        columns, first = _from_parquet(path, names, wanted), 0
    else:
        columns = _from_text(path, how, names, wanted, as_text)
        first = how.skip + how.header + 1
    rows = len(columns[wanted[0]]) if wanted else 0
    if not rows:
        raise CommunisError(f"{path}: holds no rows")
    table = Table(path, rows, {}, {}, None, first)
    return Table(
        path,
        rows,
        {c: _floats(table, names, columns[i], i) for c, i in place.items() if c in numbers},
        {c: _words(table, names, columns[place[c]], place[c]) for c in words},
        _seconds(table, columns[clock[0]], how.time_unit) if clock else None,
        first,
    )


def _index(path: Path, names: Sequence[str], column: Column, how: Files) -> int:
    if isinstance(column, int) and 0 <= column < len(names):
        return column
    if isinstance(column, str) and names.count(column) == 1:
        return names.index(column)
    if column in names:
        raise CommunisError(f"{path}: more than one column is called {column!r}")
    hint = nearest(str(column), list(names))
    if path.suffix.lower() in TEXT and len(names) == 1:
        hint += f" (is {how.delimiter!r} its delimiter?)"
    there = ", ".join(repr(n) for n in names[:20]) + (", ..." if len(names) > 20 else "")
    raise CommunisError(f"{path}: no column {column!r}{hint}; there are {len(names)}: {there}")


def _from_text(
    path: Path, how: Files, names: Sequence[str], wanted: Sequence[int], as_text: set[int]
) -> dict[int, Any]:
    import pyarrow as pa
    from pyarrow import csv as arrow

    keys = [str(i) for i in range(len(names))]  # names may be empty or repeat
    types = {keys[i]: pa.string() if i in as_text else pa.float64() for i in wanted}
    options = arrow.ConvertOptions(
        column_types=types, include_columns=[keys[i] for i in wanted], decimal_point=how.decimal
    )
    options.null_values = [*options.null_values, "None", " "]
    with reading(path, "text file", PLAIN):
        room(path, path.stat().st_size, "its text")
        try:
            table = arrow.read_csv(
                path,
                arrow.ReadOptions(column_names=keys, skip_rows=how.skip + how.header),
                arrow.ParseOptions(delimiter=how.delimiter),
                options,
            )
        except pa.ArrowException:
            found = _bad_line(path, how, names, [i for i in wanted if i not in as_text])
            if not found:
                raise
            raise CommunisError(found) from None
    return {i: table.column(keys[i]) for i in wanted}


def _bad_line(path: Path, how: Files, names: Sequence[str], numeric: Sequence[int]) -> str:
    """Which line has too few or too many cells, or a cell that is not a number."""
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        reader = csv.reader(lines, delimiter=how.delimiter)
        for row in reader:
            if reader.line_num <= how.skip + how.header or not row:
                continue
            where = f"{path}, line {reader.line_num}"
            if len(row) != len(names):
                return (
                    f"{where}: {len(row)} columns, expected {len(names)} separated by "
                    f"{how.delimiter!r}"
                )
            for i in numeric:
                try:
                    float(row[i].replace(how.decimal, ".") or "nan")
                except ValueError:
                    if row[i].strip().lower() not in NOTHING | {"null", "#n/a"}:
                        cell = shortened(row[i])
                        return f"{where}: {cell!r} in column {names[i]!r} is not a number"
    return ""


def _from_parquet(path: Path, names: Sequence[str], wanted: Sequence[int]) -> dict[int, Any]:
    with reading(path, "Parquet file", WHOLE):
        file = parquet(path)
        # Few bytes can stand for any number of equal values. What the file tells of single columns
        # is left alone: pyarrow aborts the process where that is damaged.
        rows = file.metadata.num_rows
        room(path, 8 * rows * len(wanted), f"{rows} rows x {len(wanted)} columns")
        table = file.read(columns=[names[i] for i in wanted])
        return {i: table.column(names[i]) for i in wanted}


def parquet(path: Path) -> Any:
    from pyarrow.parquet import ParquetFile

    with reading(path, "Parquet file", WHOLE):
        return ParquetFile(path)


def rows_of(path: Path) -> Array:
    """The array of a NumPy file, (rows, columns), mapped into memory."""
    found = array(path, mapped=True)
    found = found[:, None] if found.ndim == 1 else found
    return shaped(path, found, None, None)


def _floats(table: Table, names: Sequence[str], column: Any, index: int) -> Array:
    import pyarrow as pa

    try:
        values = column if isinstance(column, np.ndarray) else column.cast(pa.float64()).to_numpy()
    except pa.ArrowException as error:
        raise CommunisError(
            f"{table.path}: column {names[index]!r} does not hold numbers ({error})"
        ) from None
    with np.errstate(over="ignore"):  # what is too large for float32 is taken as missing
        return np.asarray(values, np.float32)


def _words(table: Table, names: Sequence[str], column: Any, index: int) -> Words:
    if isinstance(column, np.ndarray):
        found, codes = np.unique(column, return_inverse=True)
        raw = found.tolist()
    else:
        import pyarrow as pa

        try:
            coded = column.cast(pa.string()).combine_chunks().dictionary_encode()
        except pa.ArrowException as error:
            raise CommunisError(
                f"{table.path}: column {names[index]!r} does not hold words ({error})"
            ) from None
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        raw = coded.dictionary.to_pylist()
    tidy = [word(value) for value in raw]
    kept = sorted({t for t in tidy if t.lower() not in NOTHING})
    number = {t: i for i, t in enumerate(kept)}
    again = np.array([*(number.get(t, -1) for t in tidy), -1], np.int64)  # the last: empty cells
    return Words(again[codes], tuple(kept))


def _seconds(table: Table, column: Any, unit: str) -> Array:
    import pandas as pd
    import pyarrow as pa

    stamps = not isinstance(column, np.ndarray) and pa.types.is_timestamp(column.type)
    if stamps != (unit == "date") and not (unit == "date" and pa.types.is_string(column.type)):
        fitting = "date" if stamps else "s, ms, us or ns"
        raise CommunisError(f"{table.path}: files.time_unit = {unit!r} does not fit: {fitting}?")
    if unit == "date":
        dates = pd.to_datetime(column.to_pandas(), format="ISO8601", errors="coerce", utc=True)
        exact = dates.dt.tz_localize(None).to_numpy("datetime64[ns]")
        seconds = np.where(np.isnat(exact), np.nan, exact.astype(np.int64) * 1e-9)
    elif isinstance(column, np.ndarray):
        seconds = column * SECONDS[unit]
    else:
        with reading(table.path, "column of time stamps", "mend the column that files.time names"):
            seconds = column.cast(pa.float64()).to_numpy() * SECONDS[unit]
    bad = ~np.isfinite(seconds)
    if bad.any():
        raise CommunisError(f"{table.at(int(bad.argmax()))}: no readable time stamp")
    return np.asarray(seconds, np.float64)
