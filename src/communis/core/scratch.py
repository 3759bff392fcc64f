"""Temporary folders that do not outlive their owner for long.

A process that ends removes its own. One that is killed cannot, so each folder holds a file that its
owner keeps locked: the system releases the lock when the process is gone, whatever ended it, and
the next process that makes a folder in the same place removes those whose lock is free. A process
id would not do, because the system gives it to somebody else later.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from communis.core.errors import CommunisError

OWNER = "owner.lock"  # without this file in it, a folder is none of ours and is left alone
PREFIX = "communis-"  # with a dot before it while the folder is being made
ABANDONED = 24 * 3600  # seconds after which nobody is making a folder any more


class Scratch:
    """A new folder, removed when it is closed or forgotten, or else when the process ends."""

    def __init__(self, home: Path | None = None, variable: str = "TMPDIR") -> None:
        """home: where the folder is made; the system's temporary folder unless said. variable: of
        the environment, by which the user can choose another place."""
        home = home or Path(tempfile.gettempdir())
        sweep(home)
        try:
            self.path, lock = _owned(home)
        except OSError as error:
            raise CommunisError(
                f"{home}: no temporary folder can be made there ({error.strerror or error}); make "
                f"room, or set the environment variable {variable} to a folder with some"
            ) from error
        self._finalizer = weakref.finalize(self, _remove, self.path, lock, os.getpid())

    def close(self) -> None:
        self._finalizer()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def sweep(home: Path) -> None:
    """Removes the folders there whose owner is gone, those included that were never finished."""
    for path in [*sorted(home.glob(f"{PREFIX}*")), *sorted(home.glob(f".{PREFIX}*"))]:
        unfinished = path.name.startswith(".")
        if unfinished and not _abandoned(path):  # its owner may be about to take the lock
            continue
        try:
            lock = os.open(path / OWNER, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        except OSError:  # no folder of ours, or somebody else's
            if unfinished:
                with suppress(OSError):  # not empty, or not ours to remove
                    path.rmdir()
            continue
        try:
            if _lock(lock):
                shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)


def _abandoned(path: Path) -> bool:
    try:
        return time.time() - path.lstat().st_mtime > ABANDONED
    except OSError:  # finished meanwhile
        return False


def _owned(home: Path) -> tuple[Path, int]:
    """A new folder and its lock. It gets its name when the lock is taken."""
    made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=home))
    lock = os.open(made / OWNER, os.O_CREAT | os.O_RDWR, 0o600)
    _lock(lock)
    path = made.with_name(made.name.removeprefix("."))
    os.rename(made, path)
    return path, lock


def _remove(path: Path, lock: int, owner: int) -> None:
    """A forked worker has a copy of its parent's folder in memory: it must not remove it."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _lock(file: int) -> bool:
    """Whether the lock was free; it is held until this process and all that it forked are gone or
    have closed the file. Where there are no such locks (Windows), none is ever free."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
