"""Working on a folder: one process at a time, and only once in it.

The system's lock is one of processes and does not see a second claim in the same one, such as that
of a notebook's cell that runs again; worse, to close that one's file would give up the lock of the
first. So each process also keeps the folders that it has claimed.
"""

from __future__ import annotations

import errno
import gc
import os
import struct
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from communis.core import disk
from communis.core.disk import LOCK
from communis.core.errors import CommunisError

_CLAIM = 0  # the byte of the lock file that is locked for as long as a claim holds
_TURN = 1  # the byte that is locked by the holder of a shared claim whose turn it is
_claimed: dict[Path, None] = {}  # by this process
# struct flock, for asking who has a lock: the types of its fields, and their names.
_LAYOUTS = {
    "linux": ("hhqqi4x", ("kind", "whence", "start", "length", "process")),
    "darwin": ("qqihh", ("start", "length", "process", "kind", "whence")),
}


class Claim:
    """Holds a folder until it is closed or deleted, or the process ends."""

    def __init__(self, folder: Path, shared: bool = False) -> None:
        """Makes the folder if there is none. shared: other processes may have shared claims on
        it."""
        disk.make_folder(folder)
        place = folder.resolve()
        if place in _claimed:
            gc.collect()  # what nobody has any more may still be there
        if place in _claimed:
            raise CommunisError(
                f"{folder}: this process is working on it already; close the run that does "
                "(run.close()), or choose another folder"
            )
        lock = _opened(folder / LOCK)
        try:
            if not (_locked(lock, folder, shared) and _still_there(lock, folder)):
                raise CommunisError(
                    f"{folder}: another process is working on this run; wait until it is done, or "
                    "choose another folder"
                )
        except CommunisError:
            os.close(lock)
            raise
        _claimed[place] = None
        self._folder = folder
        self._lock = lock
        self._finalizer = weakref.finalize(self, _release, lock, place)

    def close(self) -> None:
        self._finalizer()

    def alone(self) -> bool:
        """Returns whether no other process has a claim on the folder; from then on none can have
        one."""
        return _locked(self._lock, self._folder, shared=False)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Waits until no other holder of a shared claim has its turn."""
        try:
            import fcntl
        except ImportError:
            yield
            return
        fcntl.lockf(self._lock, fcntl.LOCK_EX, 1, _TURN)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN, 1, _TURN)


def is_held(folder: Path) -> bool | None:
    """Returns whether somebody has a claim on the folder, without taking one, so that nobody is
    kept from it; None where that cannot be known."""
    if folder.resolve() in _claimed:  # to close a file of this process would give up its lock
        return True
    layout = _LAYOUTS.get(sys.platform)
    if layout is None:
        return None
    import fcntl

    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        order, names = layout
        asked = dict.fromkeys(names, 0) | {"kind": fcntl.F_WRLCK, "start": _CLAIM, "length": 1}
        question = struct.pack(order, *asked.values())
        answer = struct.unpack(order, fcntl.fcntl(file, fcntl.F_GETLK, question))
        return bool(answer[names.index("kind")] != fcntl.F_UNLCK)
    except OSError:
        return None
    finally:
        os.close(file)


def _opened(path: Path) -> int:
    """The file, which stays. A link in its place, in a folder from elsewhere, is not followed."""
    try:
        return os.open(path, os.O_CREAT | os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise CommunisError(f"{path}: is a link; remove it") from None
        raise CommunisError(
            f"{path}: cannot be opened for writing ({error.strerror}), so this folder cannot be "
            "worked on; make it writable, or copy it to a place that is"
        ) from None


def _release(lock: int, place: Path) -> None:
    os.close(lock)
    _claimed.pop(place, None)


def _still_there(lock: int, folder: Path) -> bool:
    """Whether nobody has removed the folder between opening the file and locking it."""
    try:
        return os.path.samestat(os.fstat(lock), (folder / LOCK).stat())
    except FileNotFoundError:
        return False


def _locked(file: int, folder: Path, shared: bool) -> bool:
    """Returns whether this process has the lock now, alone or with others; the system releases it
    when the process ends. Where there are no such locks (Windows), none is taken."""
    try:
        import fcntl
    except ImportError:
        return True
    try:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        fcntl.lockf(file, kind | fcntl.LOCK_NB, 1, _CLAIM)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):  # not held by another process
            raise CommunisError(
                f"{folder}: cannot be locked ({error.strerror}), so two processes could work on it "
                "at once; choose a folder on a file system that has locks"
            ) from None
        return False
    return True
