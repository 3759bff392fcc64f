"""Reading files so that a bad one is named, with the line where that is known."""

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
MOST_SAID = 300  # characters of what a library says of a file
MOST_TEXT = 2_000  # characters of an error
AGAIN = "it may have been cut short: get it again"
SEPARATORS = {None: "white space", ",": "commas", ";": "semicolons", "\t": "tabs"}


@contextmanager
def reading(where: object, what: str, mend: str = AGAIN) -> Iterator[None]:
    """Whatever goes wrong while a file is read becomes an error that names it, in one line. `where`
    is its path, `what` says what it should be ("Parquet file"), `mend` what helps.

    The libraries that read files raise far more kinds of errors than they state, so all kinds are
    caught here, and nowhere else.
    """
    try:
        yield
    except CommunisError as error:
        text = str(error)
        if text.isprintable() and len(text) <= MOST_TEXT:
            raise
        raise CommunisError(said(error, MOST_TEXT)) from None  # it cites the file
    except MemoryError as error:
        raise CommunisError(
            f"{where}: takes more memory than there is ({said(error)}); {mend}"
        ) from None
    except Exception as error:
        log.debug("%s: not a readable %s", where, what, exc_info=True)
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the file's
            raise CommunisError(f"{where}: cannot be read: {error.strerror}") from None
        raise CommunisError(f"{where}: not a readable {what} ({said(error)}); {mend}") from None


def said(error: Exception, most: int = MOST_SAID) -> str:
    """What an error says, in one line that a terminal can show."""
    text = " ".join(str(error).split()) or type(error).__name__
    return shortened("".join(c if c.isprintable() else "?" for c in text), most)


def home() -> Path:
    """Where datasets and cached windows lie: $COMMUNIS_DATA, or the user's cache folder."""
    chosen = os.environ.get("COMMUNIS_DATA")
    if chosen:
        return Path(chosen).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "communis"


def matching(folder: Path, pattern: str) -> list[Path]:
    """The files below a folder that match, sorted; an error if there are none.

    The official top folder may be left out: "USC-HAD/Subject*/a*t*.mat" is also found in the
    USC-HAD folder itself.
    """
    if not folder.is_dir():
        raise CommunisError(f"{folder}: no such folder")
    inner = pattern.partition("/")[2]
    for tried in [pattern, inner] if inner else [pattern]:
        found = sorted(path for path in folder.glob(tried) if path.is_file())
        if found:
            return found
    raise CommunisError(f"{folder}: no file matches {pattern}")


def numbers(
    path: Path, columns: int, delimiter: str | None = None, skip: int = 0, use: Sequence[int] = ()
) -> Array:
    """A text file of numbers, (rows, columns) float32: `delimiter` None means white space, `skip`
    lines at the top are left out, only the columns `use` are kept (all if empty)."""
    separator = SEPARATORS[delimiter]
    with reading(path, "text file"):
        found = _loaded(path, columns, delimiter, skip)
    if found.size == 0:
        raise CommunisError(f"{path}: holds no numbers; the file is empty or was cut short")
    if found.shape[1] != columns:
        raise CommunisError(
            f"{path}, line {skip + 1}: {found.shape[1]} columns, expected {columns} separated by "
            f"{separator}"
        )
    return found[:, list(use)] if use else found


def _loaded(path: Path, columns: int, delimiter: str | None, skip: int) -> Array:
    room(path, path.stat().st_size, "its text")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an empty file is refused by the caller
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
        row, what = _bad_row(path, columns, delimiter, skip)
        if not row:
            raise
        separator = SEPARATORS[delimiter]
        raise CommunisError(
            f"{path}, line {row}: {what}; expected {columns} numbers separated by {separator}"
        ) from None


def _bad_row(path: Path, columns: int, delimiter: str | None, skip: int) -> tuple[int, str]:
    """The first line that is not `columns` numbers, and what is wrong with it; line 0: none."""
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
    """A cell as a message may show it."""
    return cell if len(cell) <= most else f"{cell[:most]}..."


def array(path: Path, mapped: bool = False) -> Array:
    """The array of a NumPy file, read or mapped into memory. Its header is weighed against the
    file before anything is built."""
    with reading(path, "NumPy file"):
        with path.open("rb") as file:
            shape, _, dtype = _header(file)
            held = path.stat().st_size - file.tell()
        if dtype.hasobject:
            raise CommunisError(f"{path}: an array of Python objects, expected numbers")
        size = math.prod(shape) * dtype.itemsize
        if size > held:
            raise CommunisError(
                f"{path}: announces {dtype} of shape {shape}, {size} bytes, and holds {held}; "
                f"{AGAIN}"
            )
        if not mapped:
            room(path, size, "its array")
        return np.asarray(np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False))


def _header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type that a NumPy file announces."""
    version = np.lib.format.read_magic(file)
    if version == (1, 0):
        return np.lib.format.read_array_header_1_0(file)
    return np.lib.format.read_array_header_2_0(file)


def shaped(path: Path, values: Array, *shape: int | None) -> Array:
    """The values, or an error if they are not real numbers of this shape; None stands for any
    length but 0."""
    if values.dtype.kind not in "iufb":
        raise CommunisError(f"{path}: values of type {values.dtype}, expected real numbers")
    fits = values.ndim == len(shape) and all(
        n > 0 if wanted is None else n == wanted
        for n, wanted in zip(values.shape, shape, strict=False)
    )
    if not fits:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise CommunisError(f"{path}: values of shape {values.shape}, expected ({wanted})")
    return values
