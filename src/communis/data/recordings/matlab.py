"""MATLAB files, read in a separate process, so that a damaged file does no harm: see `apart.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from communis.core.errors import CommunisError
from communis.data.recordings.apart import UnreadError, matlab_files
from communis.data.recordings.files import reading


def matlab(path: Path, *keys: str) -> Mapping[str, Any]:
    """Returns the variables of a MATLAB file (version 7 or older); an error names missing ones."""
    with reading(path, "MATLAB file"):
        try:
            variables: Mapping[str, Any] = matlab_files.read(path.absolute())
        except UnreadError as error:
            if error.kind != "NotImplementedError":
                raise
            raise CommunisError(
                f"{path}: MATLAB 7.3 (HDF5) files cannot be read; save it again with `save -v7`"
            ) from None
    missing = [key for key in keys if key not in variables]
    if missing:
        known = ", ".join(key for key in variables if not key.startswith("__"))
        raise CommunisError(
            f"{path}: no variable {', '.join(missing)}; there are {known or 'none'}"
        )
    return variables
