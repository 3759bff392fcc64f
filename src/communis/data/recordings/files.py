"""Readers of files whose errors name the bad file, with the line if it is known."""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.memory import room

log = logging.getLogger("communis")
MOST_SAID = 300  # characters of a library's error message
MOST_TEXT = 2_000  # characters of an error
AGAIN = "it may have been cut short: get it again"
SEPARATORS = {None: "white space", ",": "commas", ";": "semicolons", "\t": "tabs"}


@contextmanager
def reading(where: object, what: str, mend: str = AGAIN) -> Iterator[None]:
    """Turns every failure while a file is read into an error of one line that names the file.
    `where` is its path, `what` its expected kind ("Parquet file"), `mend` the way out.

    The libraries that read files raise many more kinds of errors than they document, so all kinds
    are caught here, and nowhere else.
    """
    try:
        yield
    except CommunisError as error:
        text = str(error)
        if text.isprintable() and len(text) <= MOST_TEXT:
            raise
        raise CommunisError(said(error, MOST_TEXT)) from None  # it quotes the file
    except MemoryError as error:
        raise CommunisError(
            f"{where}: takes more memory than there is ({said(error)}); {mend}"
        ) from None
    except Exception as error:
        log.debug("%s: not a readable %s", where, what, exc_info=True)
        if isinstance(error, OSError) and error.errno is not None:  # the disk failed, not the file
            raise CommunisError(f"{where}: cannot be read: {error.strerror}") from None
        raise CommunisError(f"{where}: not a readable {what} ({said(error)}); {mend}") from None


def said(error: Exception, most: int = MOST_SAID) -> str:
    """Returns the message of an error as one printable line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return shortened("".join(c if c.isprintable() else "?" for c in text), most)


def home() -> Path:
    """Returns the data folder, which holds datasets and cached windows: $COMMUNIS_DATA, or a folder
    in the user's cache."""
    configured = os.environ.get("COMMUNIS_DATA")
    if configured:
        return Path(configured).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "communis"


def matching(folder: Path, pattern: str) -> list[Path]:
    """Returns the files below a folder that match, sorted; raises an error if there are none.

    The official top folder may be left out: "USC-HAD/Subject*/a*t*.mat" is also found in the
    USC-HAD folder itself.
    """
    if not folder.is_dir():
        raise CommunisError(f"{folder}: no such folder")
    patterns = [pattern]
    inner = pattern.partition("/")[2]
    if inner:
        patterns.append(inner)
    for tried in patterns:
        files = sorted(path for path in folder.glob(tried) if path.is_file())
        if files:
            return files
    raise CommunisError(f"{folder}: no file matches {pattern}")


def numbers(
    path: Path, columns: int, delimiter: str | None = None, skip: int = 0, use: Sequence[int] = ()
) -> Array:
    """Returns the numbers of a text file, (rows, columns) float32. `delimiter` None means white
    space, `skip` lines at the top are left out, only the columns `use` are kept (all if empty)."""
    with reading(path, "text file"):
        values = _loaded(path, columns, delimiter, skip)
    if values.size == 0:
        raise CommunisError(f"{path}: holds no numbers; the file is empty or was cut short")
    if values.shape[1] != columns:
        raise CommunisError(
            f"{path}, line {skip + 1}: {values.shape[1]} columns, expected {columns} separated by "
            f"{SEPARATORS[delimiter]}"
        )
    return values[:, list(use)] if use else values


def _loaded(path: Path, columns: int, delimiter: str | None, skip: int) -> Array:
    room(path, path.stat().st_size, "its text")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # the caller refuses an empty file
            return np.loadtxt(
                path,
                np.float32,
                comments=None,
                delimiter=delimiter,
                skiprows=skip,
                ndmin=2,
                encoding="utf-8-sig",
            )
    except UnicodeDecodeError:
        raise
    except ValueError:
        row, problem = _bad_row(path, columns, delimiter, skip)
        if not row:
            raise
        separator = SEPARATORS[delimiter]
        raise CommunisError(
            f"{path}, line {row}: {problem}; expected {columns} numbers separated by {separator}"
        ) from None


def _bad_row(path: Path, columns: int, delimiter: str | None, skip: int) -> tuple[int, str]:
    """Returns the first line that does not hold `columns` numbers, and its problem; line 0 if there
    is no such line."""
    with path.open(encoding="utf-8-sig", errors="replace") as lines:
        for row, line in enumerate(lines, start=1):
            cells = line.split(delimiter)
            if row <= skip or not line.strip():
                continue
            if len(cells) != columns:
                return row, f"{len(cells)} columns"
            for cell in cells:
                try:
                    float(cell)
                except ValueError:
                    return row, f"{shortened(cell.strip())!r} is not a number"
    return 0, ""


def shortened(cell: str, most: int = 60) -> str:
    """Returns a cell short enough for a message."""
    return cell if len(cell) <= most else f"{cell[:most]}..."


def array(path: Path, mapped: bool = False) -> Array:
    """Returns the array of a NumPy file, read or mapped into memory. The size in its header is
    compared with that of the file before memory is allocated."""
    with reading(path, "NumPy file"):
        with path.open("rb") as file:
            shape, _, dtype = _header(file)
            stored = path.stat().st_size - file.tell()
        if dtype.hasobject:
            raise CommunisError(f"{path}: an array of Python objects, expected numbers")
        size = math.prod(shape) * dtype.itemsize
        if size > stored:
            raise CommunisError(
                f"{path}: its header announces {dtype} of shape {shape}, {size} bytes, but it "
                f"holds {stored}; {AGAIN}"
            )
        if not mapped:
            room(path, size, "its array")
        return np.asarray(np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False))


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Returns shape, order and type from the header of a NumPy file."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def shaped(path: Path, values: Array, *shape: int | None) -> Array:
    """Returns the values; raises an error if they are not real numbers of this shape. None stands
    for any length except 0."""
    if values.dtype.kind not in "iufb":
        raise CommunisError(f"{path}: values of type {values.dtype}, expected real numbers")
    fits = values.ndim == len(shape)
    for length, expected in zip(values.shape, shape, strict=False):
        fits &= length > 0 if expected is None else length == expected
    if not fits:
        expected_shape = ", ".join("any" if n is None else str(n) for n in shape)
        raise CommunisError(f"{path}: values of shape {values.shape}, expected ({expected_shape})")
    return values
