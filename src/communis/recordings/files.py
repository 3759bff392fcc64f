"""Reading files so that a bad one is named, with the line where that is known."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from communis.core import CommunisError
from communis.recordings.recording import Array


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
    separator = {None: "white space", ",": "commas", ";": "semicolons", "\t": "tabs"}[delimiter]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an empty file is refused below
            found = np.loadtxt(
                path,
                np.float32,
                comments=None,
                delimiter=delimiter,
                skiprows=skip,
                ndmin=2,
                encoding="utf-8-sig",
            )
    except (OSError, UnicodeDecodeError) as error:
        raise CommunisError(f"{path}: cannot be read: {error}") from None
    except ValueError as error:
        row, what = _bad_row(path, columns, delimiter, skip)
        raise CommunisError(
            f"{path}, line {row}: {what}; expected {columns} numbers separated by {separator}"
            if row
            else f"{path}: {error}"
        ) from None
    if found.size == 0:
        raise CommunisError(f"{path}: holds no numbers; the file is empty or was cut short")
    if found.shape[1] != columns:
        raise CommunisError(
            f"{path}, line {skip + 1}: {found.shape[1]} columns, expected {columns} separated by "
            f"{separator}"
        )
    return found[:, list(use)] if use else found


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
                    return row, f"{cell.strip()!r} is not a number"
    return 0, ""


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
