"""Files that survive what happens to the process and to the machine.

Every file is replaced as a whole: whatever kills the process, it holds the old content or the new.
A power cut may still undo what was written, or leave a file empty, until it is synced. `write_file`
and `append` leave that to a later `sync` of the folder, `replace_file` does it at once. So a
checkpoint first writes all that it relies on, then syncs, then puts itself in place.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO

from communis.core.errors import CommunisError, readable

LOCK = "lock"  # the file by which a folder is claimed (claim.py)
DIGEST = 16  # bytes at the end of a sealed file
DIGEST_KEY = "digest"  # of a table in a JSON file
DIGEST_MARK = "blake2b:"  # how its value begins
# A link in a folder from elsewhere would lead the writing to a file outside of it.
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class DamagedError(CommunisError):
    """The content of a file is not what was written into it."""


def write_file(path: Path, data: bytes) -> None:
    """Replaces the content of a file. Afterwards it holds `data`, or what it held before if this
    fails; after a power cut `data` only if it was synced."""
    with _named(path), _beside(path) as partial:
        with _created(partial) as file:
            file.write(data)
        partial.replace(path)


def append(path: Path, text: str) -> None:
    """Appends all of the data to a file, or nothing; after a power cut the data are there only if
    they were synced."""
    with _named(path):
        before = path.stat().st_size if path.exists() else 0
        try:
            with path.open("ab") as file:
                file.write(text.encode())
        except BaseException:  # Ctrl-C too: the next text must not follow half of this one
            _cut(path, before)
            raise


def overwrite(path: Path, data: bytes) -> None:
    """Writes `data` over the content of a file, for readers that wait until it is written. The
    file's pages are used again, which takes a fifth of the time of a new file."""
    with _named(path), os.fdopen(os.open(path, _FLAGS, 0o666), "r+b") as file:
        file.write(data)
        file.truncate()


def write_at(path: Path, data: bytes, place: int) -> None:
    """Writes `data` at a place of a file and cuts off what follows. A file that ends before this
    place is refused. If writing fails, the file ends at this place; after a power cut only what was
    synced is there."""
    with _named(path):
        try:
            with os.fdopen(os.open(path, _FLAGS, 0o666), "r+b") as file:
                length = os.fstat(file.fileno()).st_size
                if length < place:  # otherwise zeros would fill the gap
                    raise DamagedError(
                        f"{path}: has {length} bytes, but {place} were written into it, so that "
                        "results would be incomplete; put back a copy, or run it again"
                    )
                file.truncate(place)
                file.seek(place)
                file.write(data)
        except OSError:
            _cut(path, place)
            raise


def replace_file(path: Path, data: bytes) -> None:
    """Replaces the content of a file and syncs it: it holds `data`, or what it held before, also
    after a power cut."""
    with _named(path), _beside(path) as partial:
        with _created(partial) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_entry(path.parent)


def make_folder(path: Path) -> None:
    """Creates a folder with its parents and syncs them, so that it is there after a power cut."""
    with _named(path):
        new = [folder for folder in (path, *path.parents) if not folder.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for folder in reversed(new):
            _sync_entry(folder.parent)


def move(path: Path, to: Path) -> None:
    """Gives a file another name; after a power cut only if it was synced."""
    with _named(to):
        path.replace(to)


def remove(path: Path) -> None:
    """Removes a file, if it is there; after a power cut only if that was synced."""
    with _named(path):
        path.unlink(missing_ok=True)


def sync(folder: Path, since: int = 0) -> None:
    """Syncs everything that was written below the folder. since: where files are synced one by one,
    those that changed before this time in nanoseconds are left out."""
    with _named(folder):
        if _sync_filesystem(folder):
            return
        for path in [folder, *sorted(folder.rglob("*"))]:
            if path.name == LOCK:  # closing any handle of it would give up the claim
                continue
            if path.is_dir() or path.stat().st_mtime_ns >= since:
                _sync_entry(path)


def regular(path: Path) -> Path:
    """Returns the path of a file; raises OSError if a pipe or a device is in its place, as in a
    folder from elsewhere: reading one may never end."""
    kind = path.stat().st_mode
    if stat.S_ISREG(kind) or stat.S_ISDIR(kind):  # reading a folder fails by itself
        return path
    raise OSError(errno.EINVAL, "a pipe or a device, not a file", str(path))


def partial_of(path: Path) -> Path:
    """Returns the path where a file is written before it is renamed."""
    return path.with_name(path.name + ".partial")


def sealed(data: bytes, owner: str) -> bytes:
    """Returns the data with a digest at its end. The digest depends on the owner, so that the file
    of another owner is not accepted."""
    return data + _seal(data, owner)


def unsealed(path: Path, owner: str, kind: str, way_out: str) -> bytes:
    """Reads a file of sealed data. If it cannot be read, or is not what was sealed for this owner,
    an error names the file and what can be done."""
    try:
        content = regular(path).read_bytes()
    except OSError as error:
        raise DamagedError(f"{path}: {kind} is gone ({error.strerror}); {way_out}") from None
    data = content[:-DIGEST]
    if content[-DIGEST:] != _seal(data, owner):
        raise DamagedError(
            f"{path}: {kind} is damaged, or another one's: its {len(content)} bytes do not have "
            f"the digest that was written with them; {way_out}"
        )
    return data


def _seal(data: bytes, owner: str) -> bytes:
    digest = blake2b(data, digest_size=DIGEST)
    digest.update(owner.encode())
    return digest.digest()


def digest_of(data: bytes) -> str:
    """Returns the digest by which a file's content is recognised."""
    return blake2b(data, digest_size=DIGEST).hexdigest()


def write_json(path: Path, table: Mapping[str, Any], owner: str = "") -> None:
    """Replaces a file by the table with a digest, safe from a power cut. The digest depends on the
    owner, so that the file of another owner is not accepted."""
    content = with_digest(table, path.name + owner)
    replace_file(path, json.dumps(content, indent=1).encode())


def read_json(path: Path, owner: str = "", mark: str = "") -> dict[str, Any]:
    """Returns the table in a file that `write_json` wrote for this owner, without its digest. A
    table without a digest is accepted only where there is no owner. mark: a key that only versions
    with digests write; a table that has it must have a digest, too."""
    try:
        content = json.loads(regular(path).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        what = readable(f"{type(error).__name__}: {error}")
        raise DamagedError(
            f"{path}: cannot be read ({what}); put back a copy, or run it again"
        ) from None
    if not isinstance(content, dict):
        raise DamagedError(
            f"{path}: not as this version writes it (it holds no table); put back a copy, or run "
            "it again"
        )
    try:
        required = bool(owner) or bool(mark and mark in content)
        return without_digest(content, path.name + owner, required)
    except DamagedError as error:
        raise DamagedError(f"{path}: {error}; put back a copy, or run it again") from None


def with_digest(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the table with a digest of its content. name: of the file, so that the content of no
    other file is accepted."""
    plain = json.loads(json.dumps(table))  # as it will be read
    return {**plain, DIGEST_KEY: _digest_of(plain, name)}


def without_digest(table: Mapping[str, Any], name: str, required: bool = False) -> dict[str, Any]:
    """Returns the table without its digest; refuses one whose content is another. Older versions
    wrote tables without digests; required: this table is not of such a version."""
    digests = {key: value for key, value in table.items() if _is_digest(key, value)}
    content = {key: value for key, value in table.items() if key not in digests}
    if digests and digests != {DIGEST_KEY: _digest_of(content, name)}:
        raise DamagedError(
            "it is damaged, edited or another run's: its content does not have the digest that was "
            "written with it"
        )
    if required and not digests:
        raise DamagedError(
            "it is damaged or edited: the digest that was written with it is missing"
        )
    return content


def _is_digest(key: str, value: Any) -> bool:
    """Returns whether a key is that of the digest, by its name or its value: either may be
    damaged."""
    return key == DIGEST_KEY or (isinstance(value, str) and value.startswith(DIGEST_MARK))


def _digest_of(table: Mapping[str, Any], name: str) -> str:
    text = json.dumps([name, table], sort_keys=True)
    return DIGEST_MARK + blake2b(text.encode(), digest_size=DIGEST).hexdigest()


def _cut(path: Path, length: int) -> None:
    """Removes what follows these bytes of a file, if that is possible. A link is not followed."""
    with suppress(OSError):
        handle = os.open(path, _FLAGS & ~os.O_CREAT)
        try:
            os.ftruncate(handle, length)
        finally:
            os.close(handle)


@contextmanager
def _beside(path: Path) -> Iterator[Path]:
    """Yields the path where a file is written first. If writing fails, for instance because the
    disk is full, the file there is removed."""
    if path.exists():
        regular(path)  # /dev/null would not be written but replaced
    partial = partial_of(path)
    try:
        yield partial
    except OSError:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


@contextmanager
def _created(path: Path) -> Iterator[BinaryIO]:
    """Opens a new file for writing. Whatever has its name is removed first: a link in a folder from
    elsewhere could lead to a file outside of it."""
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        yield file


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Names the file in errors of the system."""
    try:
        yield
    except OSError as error:
        raise CommunisError(
            f"{path}: cannot be written ({error.strerror or error}); {_mend(error.errno)}"
        ) from error


def _mend(number: int | None) -> str:
    """Returns what the user can do about an error of the system."""
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "free some space, then go on with the same command"
    if number in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "choose a folder that you may write to"
    if number == errno.EIO:
        return (
            "the disk may be failing: copy the folder to another one, and go on there from its "
            "last checkpoint"
        )
    return "nothing was lost"


def _sync_entry(path: Path) -> None:
    """Syncs the content of a file, or the entries of a folder."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        if path.is_dir():  # Windows opens no folders, and needs none to be synced
            return
        raise
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _sync_filesystem(folder: Path) -> bool:
    """Syncs the folder's file system in one call, because a round may have written hundreds of
    files. Returns whether it did: not every system has such a call."""
    call = _syncfs()
    if call is None:
        return False
    handle = os.open(folder, os.O_RDONLY)
    try:
        if call(handle) == 0:
            return True
        failure = ctypes.get_errno()
    finally:
        os.close(handle)
    if failure == errno.ENOSYS:
        return False
    # What could not be written is reported once: syncing the files one by one might find nothing.
    raise OSError(failure, os.strerror(failure))


@cache
def _syncfs() -> Any:
    """Returns Linux's system call, or None."""
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
