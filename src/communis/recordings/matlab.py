"""MATLAB files, read so that a damaged one harms nothing: see `matlab_child.py`."""

from __future__ import annotations

import atexit
import json
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from communis.core import CommunisError

CHILD = Path(__file__).with_name("matlab_child.py")


class _Reader:
    """The process that reads, started when it is first needed and again if a file crashed it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, path: Path) -> tuple[bool, Any]:
        """Whether the file could be read, and what it holds or what was wrong with it."""
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(str(path)).encode() + b"\n")
            stdin.flush()
            length = stdout.read(8)
            data = stdout.read(int.from_bytes(length, "little"))
        except BrokenPipeError:
            length, data = b"", b""
        if len(length) < 8:
            code = self._process.wait()
            self.close()
            return False, ("crash", f"it crashed the process that read it, exit code {code}")
        # From our own child, which made it of what the file holds.
        found: tuple[bool, Any] = pickle.loads(data)
        return found

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


_reader = _Reader()
atexit.register(_reader.close)


def matlab(path: Path, *keys: str) -> Mapping[str, Any]:
    """The variables of a MATLAB file (version 7 or older); an error names those that are
    missing."""
    if not path.exists():
        raise CommunisError(f"{path}: no such file")
    fine, found = _reader.read(path.absolute())
    if not fine:
        kind, text = found
        if kind == "PermissionError":
            raise CommunisError(f"{path}: cannot be read: {text}")
        if kind == "NotImplementedError":
            raise CommunisError(
                f"{path}: a MATLAB 7.3 (HDF5) file; save it again with `save -v7` to have it read"
            )
        raise CommunisError(
            f"{path}: not a readable MATLAB file ({text or kind}); "
            "it may have been cut short: get it again"
        )
    missing = [key for key in keys if key not in found]
    if missing:
        there = ", ".join(key for key in found if not key.startswith("__"))
        raise CommunisError(
            f"{path}: no variable {', '.join(missing)}; there are {there or 'none'}"
        )
    variables: Mapping[str, Any] = found
    return variables
