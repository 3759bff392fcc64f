"""Temporary folders that are removed even if their owner is killed.

A process that ends removes its own folders. A process that is killed cannot, so each folder holds a
file that its owner keeps locked. The system releases the lock when the process ends in whatever
way, and the next process that creates a folder in the same place removes those whose lock is free.
A process id is not enough, because the system reuses it.
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

OWNER = "owner.lock"  # a folder without this file is not one of communis and is left alone
PREFIX = "communis-"  # preceded by a dot while the folder is being created
ABANDONED = 24 * 3600  # seconds after which the creation of a folder counts as abandoned


class Scratch:
    """A new folder, which is removed when the object is closed or deleted or the process ends."""

    def __init__(self, home: Path | None = None, variable: str = "TMPDIR") -> None:
        """home: where the folder is created, by default the system's temporary folder. variable:
        the environment variable with which the user can choose another place."""
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
    """Removes the folders in `home` whose owner has ended, unfinished ones included."""
    for path in [*sorted(home.glob(f"{PREFIX}*")), *sorted(home.glob(f".{PREFIX}*"))]:
        unfinished = path.name.startswith(".")
        if unfinished and not _abandoned(path):  # its owner may be about to take the lock
            continue
        try:
            lock = os.open(path / OWNER, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
        except OSError:  # not a folder of communis, or one of another user
            if unfinished:
                with suppress(OSError):  # it is not empty, or belongs to another user
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
    except OSError:  # it was finished in the meantime
        return False


def _owned(home: Path) -> tuple[Path, int]:
    """Returns a new folder and its lock. The folder gets its final name after the lock is taken."""
    made = Path(tempfile.mkdtemp(prefix=f".{PREFIX}", dir=home))
    lock = os.open(made / OWNER, os.O_CREAT | os.O_RDWR, 0o600)
    _lock(lock)
    path = made.with_name(made.name.removeprefix("."))
    os.rename(made, path)
    return path, lock


def _remove(path: Path, lock: int, owner: int) -> None:
    """Removes the folder, unless this is a forked worker: it has a copy of the parent's object."""
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _lock(file: int) -> bool:
    """Takes the lock if it is free; returns whether it was. The lock is held until this process and
    all processes that it forked have ended or closed the file. On Windows, which has no such locks,
    none is ever free."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
