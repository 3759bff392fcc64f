"""Tables: selected columns of a CSV, Parquet or NPY file as arrays. Errors name the line of a bad
cell."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
NOTHING = {"", "nan", "na", "n/a", "none"}  # empty cells, in lower case
BAD_NUMBERS = {"null", "#n/a"}  # cells that are empty in a column of numbers
WHOLE = "it may have been cut short, or two of its columns may have the same name"
PLAIN = "expected lines of plain text in UTF-8, in which no cell is longer than 131,072 characters"
SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True)
class Words:
    """A column of words, coded by the index of the word; -1: an empty cell."""

    codes: Array  # (rows,) int64
    words: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """The columns that were read from one file."""

    path: Path
    rows: int
    numbers: Mapping[Column, Array]  # (rows,) float32, NaN for an empty cell
    words: Mapping[Column, Words]
    time: Array | None  # (rows,) float64, seconds
    first: int = 0  # the line of the first row; 0: the file has no lines

    def at(self, row: int) -> str:
        """Returns the place of a row, for errors."""
        return f"{self.path}, line {self.first + row}" if self.first else f"{self.path}, row {row}"


def word(value: object) -> str:
    """Returns a cell as a word: 1, 1.0 and " 1" are equal."""
    text = str(value).strip()
    integer = re.fullmatch(r"(-?\d+)\.0*", text)
    return integer[1] if integer else text


def header(path: Path, how: Files) -> tuple[str, ...]:
    """Returns the names of the columns; their numbers as text if there is no header."""
    if path.suffix.lower() == ".npy":
        return tuple(str(i) for i in range(rows_of(path).shape[1]))
    if path.suffix.lower() == ".parquet":
        with reading(path, "Parquet file", WHOLE):
            return tuple(parquet(path).schema_arrow.names)
    if path.suffix.lower() not in TEXT:
        raise CommunisError(
            f"{path}: expected a CSV, Parquet or NPY file: .csv, .tsv, .txt, .parquet or .npy"
        )
    above = lines_above(path, how)
    with reading(path, "text file", PLAIN), path.open(encoding="utf-8-sig", newline="") as lines:
        row = next(csv.reader(islice(lines, above, None), delimiter=how.delimiter), None)
    if not row:
        raise CommunisError(f"{path}: empty")
    if how.header:
        return tuple(cell.strip() for cell in row)
    return tuple(str(i) for i in range(len(row)))


def lines_above(path: Path, how: Files) -> int:
    """Returns the number of lines above the header, or above the first row without one."""
    if not how.comment:
        return how.skip
    with reading(path, "text file", PLAIN), path.open(encoding="utf-8-sig", newline="") as lines:
        for number, line in enumerate(lines):
            empty = not line.strip(" \t\r\n;,")
            if number >= how.skip and not empty and not line.lstrip().startswith(how.comment):
                return number
    raise CommunisError(f"{path}: holds no rows, only lines that begin with {how.comment!r}")


def read(
    path: Path,
    how: Files,
    numbers: Sequence[Column] = (),
    words: Sequence[Column] = (),
    time: Column | None = None,
) -> Table:
    """Returns the columns `numbers` and `words`, and the time stamps in the column `time`."""
    names = header(path, how)
    index = {column: _index(path, names, column, how) for column in (*numbers, *words)}
    time_index = None if time is None else _index(path, names, time, how)
    wanted = set(index.values())
    as_text = {index[column] for column in words}
    if time_index is not None:
        wanted.add(time_index)
        if how.time_unit == "date":
            as_text.add(time_index)
    ordered = sorted(wanted)
    first = 0
    if path.suffix.lower() == ".npy":
        columns = {i: rows_of(path)[:, i] for i in ordered}
    elif path.suffix.lower() == ".parquet":
        columns = _from_parquet(path, names, ordered)
    else:
        above = lines_above(path, how) + how.header
        columns = _from_text(path, replace(how, skip=above), names, ordered, as_text)
        first = above + 1
    rows = len(columns[ordered[0]]) if ordered else 0
    if not rows:
        raise CommunisError(f"{path}: holds no rows")
    empty = Table(path, rows, {}, {}, None, first)  # for the places in errors
    return replace(
        empty,
        numbers={c: _floats(empty, names, columns[index[c]], index[c]) for c in numbers},
        words={c: _words(empty, names, columns[index[c]], index[c]) for c in words},
        time=None if time_index is None else _seconds(empty, columns[time_index], how.time_unit),
    )


def _index(path: Path, names: Sequence[str], column: Column, how: Files) -> int:
    """Returns the index of a column that is given by its name or number."""
    if isinstance(column, int) and 0 <= column < len(names):
        return column
    if isinstance(column, str) and names.count(column) == 1:
        return names.index(column)
    if column in names:
        raise CommunisError(f"{path}: more than one column is called {column!r}")
    hint = nearest(str(column), list(names))
    if path.suffix.lower() in TEXT and len(names) == 1:
        hint += f" (is {how.delimiter!r} its delimiter?)"
    listed = ", ".join(repr(n) for n in names[:20]) + (", ..." if len(names) > 20 else "")
    raise CommunisError(f"{path}: no column {column!r}{hint}; there are {len(names)}: {listed}")


def _from_text(
    path: Path, how: Files, names: Sequence[str], wanted: Sequence[int], as_text: set[int]
) -> dict[int, Any]:
    """Returns columns of a text file. how.skip: all lines above the first row."""
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
                arrow.ReadOptions(column_names=keys, skip_rows=how.skip),
                arrow.ParseOptions(delimiter=how.delimiter),
                options,
            )
        except pa.ArrowException:
            problem = _bad_line(path, how, names, [i for i in wanted if i not in as_text])
            if not problem:
                raise
            raise CommunisError(problem) from None
    return {i: table.column(keys[i]) for i in wanted}


def _bad_line(path: Path, how: Files, names: Sequence[str], numeric: Sequence[int]) -> str:
    """Returns the place and the problem of the first line that has too few or too many cells, or a
    cell that is not a number; empty if there is none."""
    with path.open(encoding="utf-8", errors="replace", newline="") as lines:
        reader = csv.reader(lines, delimiter=how.delimiter)
        for row in reader:
            if reader.line_num <= how.skip or not row:
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
                    if row[i].strip().lower() not in NOTHING | BAD_NUMBERS:
                        cell = shortened(row[i])
                        return f"{where}: {cell!r} in column {names[i]!r} is not a number"
    return ""


def _from_parquet(path: Path, names: Sequence[str], wanted: Sequence[int]) -> dict[int, Any]:
    with reading(path, "Parquet file", WHOLE):
        file = parquet(path)
        # Few bytes can encode any number of equal values. The metadata of single columns is not
        # read: pyarrow aborts the process if it is damaged.
        rows = file.metadata.num_rows
        room(path, 8 * rows * len(wanted), f"{rows} rows x {len(wanted)} columns")
        table = file.read(columns=[names[i] for i in wanted])
        return {i: table.column(names[i]) for i in wanted}


def parquet(path: Path) -> Any:
    from pyarrow.parquet import ParquetFile

    with reading(path, "Parquet file", WHOLE):
        return ParquetFile(path)


def rows_of(path: Path) -> Array:
    """Returns the array of a NumPy file, (rows, columns), mapped into memory."""
    values = array(path, mapped=True)
    if values.ndim == 1:
        values = values[:, None]
    return shaped(path, values, None, None)


def _floats(table: Table, names: Sequence[str], column: Any, index: int) -> Array:
    """Returns a column of numbers as float32."""
    import pyarrow as pa

    try:
        values = column if isinstance(column, np.ndarray) else column.cast(pa.float64()).to_numpy()
    except pa.ArrowException as error:
        raise CommunisError(
            f"{table.path}: column {names[index]!r} does not hold numbers ({error})"
        ) from None
    with np.errstate(over="ignore"):  # a number too large for float32 counts as missing
        return np.asarray(values, np.float32)


def _words(table: Table, names: Sequence[str], column: Any, index: int) -> Words:
    """Returns a column of words, with the words in sorted order."""
    if isinstance(column, np.ndarray):
        distinct, codes = np.unique(column, return_inverse=True)
        raw = distinct.tolist()
    else:
        import pyarrow as pa

        try:
            coded = column.cast(pa.string()).combine_chunks().dictionary_encode()
            raw = coded.dictionary.to_pylist()
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise CommunisError(
                f"{table.path}: column {names[index]!r} does not hold words ({error})"
            ) from None
        codes = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
    cells = [word(value) for value in raw]
    words = sorted({cell for cell in cells if cell.lower() not in NOTHING})
    code_of = {text: i for i, text in enumerate(words)}
    new_codes = [code_of.get(cell, -1) for cell in cells]
    new_codes.append(-1)  # for code -1, an empty cell
    return Words(np.array(new_codes, np.int64)[codes], tuple(words))


def _seconds(table: Table, column: Any, unit: str) -> Array:
    """Returns a column of time stamps in seconds, as float64."""
    import pandas as pd
    import pyarrow as pa

    is_date = not isinstance(column, np.ndarray) and pa.types.is_timestamp(column.type)
    if is_date != (unit == "date") and not (unit == "date" and pa.types.is_string(column.type)):
        fitting = "date" if is_date else "s, ms, us or ns"
        raise CommunisError(
            f"{table.path}: files.time_unit = {unit!r} does not fit the column of time stamps; "
            f"expected {fitting}"
        )
    if unit == "date":
        dates = pd.to_datetime(column.to_pandas(), format="ISO8601", errors="coerce", utc=True)
        exact = dates.dt.tz_localize(None).to_numpy("datetime64[ns]")
        seconds = np.where(np.isnat(exact), np.nan, exact.astype(np.int64) * 1e-9)
    elif isinstance(column, np.ndarray):
        seconds = column * SECONDS[unit]
    else:
        mend = "correct the column that files.time names"
        with reading(table.path, "column of time stamps", mend):
            seconds = column.cast(pa.float64()).to_numpy() * SECONDS[unit]
    bad = ~np.isfinite(seconds)
    if bad.any():
        raise CommunisError(
            f"{table.at(int(bad.argmax()))}: the time stamp is missing or not readable; correct or "
            "remove the row"
        )
    return np.asarray(seconds, np.float64)
