"""Working on a folder: one process at a time, and only once in it.

The system's lock is one of processes and does not see a second claim in the same one, such as that
of a notebook's cell that runs again; worse, to close that one's file would give up the lock of the
first. So each process also keeps the folders that it has claimed.
"""

from __future__ import annotations

import gc
import os
import weakref
from pathlib import Path

from communis.core import disk
from communis.core.errors import CommunisError

LOCK = "lock"  # the file, which stays
_claimed: dict[Path, None] = {}  # by this process


class Claim:
    """Holds until it is closed or forgotten, or the process ends."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder if there is none."""
        disk.make_folder(folder)
        place = folder.resolve()
        if place in _claimed:
            gc.collect()  # what nobody has any more may still be there
        if place in _claimed:
            raise CommunisError(
                f"{folder}: this process is working on it already; close the run that does "
                "(run.close()), or choose another folder"
            )
        lock = os.open(folder / LOCK, os.O_CREAT | os.O_RDWR)
        if not (_locked(lock) and _still_there(lock, folder)):
            os.close(lock)
            raise CommunisError(
                f"{folder}: another process is working on this run; wait until it is done, or "
                "choose another folder"
            )
        _claimed[place] = None
        self._finalizer = weakref.finalize(self, _release, lock, place)

    def close(self) -> None:
        self._finalizer()


def _release(lock: int, place: Path) -> None:
    os.close(lock)
    _claimed.pop(place, None)


def _still_there(lock: int, folder: Path) -> bool:
    """Whether nobody has removed the folder between opening the file and locking it."""
    try:
        return os.path.samestat(os.fstat(lock), (folder / LOCK).stat())
    except FileNotFoundError:
        return False


def _locked(file: int) -> bool:
    """An exclusive lock for this process; the system releases it when the process ends. Where
    there are no such locks (Windows), none is taken."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
