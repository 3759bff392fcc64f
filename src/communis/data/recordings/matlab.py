"""MATLAB files, read so that a damaged one harms nothing: see `apart.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from communis.core.errors import CommunisError
from communis.data.recordings.apart import UnreadError, matlab_files
from communis.data.recordings.files import reading


def matlab(path: Path, *keys: str) -> Mapping[str, Any]:
    """The variables of a MATLAB file (version 7 or older); an error names those that are
    missing."""
    with reading(path, "MATLAB file"):
        try:
            found: Mapping[str, Any] = matlab_files.read(path.absolute())
        except UnreadError as error:
            if error.kind != "NotImplementedError":
                raise
            raise CommunisError(
                f"{path}: a MATLAB 7.3 (HDF5) file; save it again with `save -v7` to have it read"
            ) from None
    missing = [key for key in keys if key not in found]
    if missing:
        there = ", ".join(key for key in found if not key.startswith("__"))
        raise CommunisError(
            f"{path}: no variable {', '.join(missing)}; there are {there or 'none'}"
        )
    return found
