"""Unpacks untrusted archives: no file is written outside of the folder, and limits hold for sizes
and numbers of files."""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import re
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, cast

from communis.core.errors import CommunisError
from communis.data.recordings.files import said, shortened

YOURSELF = "if it is one, unpack it yourself and give the folder instead"
Progress = Callable[[str, int, int], None]  # activity, bytes done, bytes in all (0: unknown)
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MOST_BYTES = 1 << 40  # of all files in an archive, archives in it included
MOST_FILES = 2_000_000
MOST_NESTED = 4  # depth of archives in archives
FOREIGN = (".rar", ".7z", ".zipx", ".tar.zst")  # archives that Python cannot read
UNPLACEABLE = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL)
MOST_FOLDERS = 64  # depth of a file in an archive
MOST_HEADER = 1 << 24  # bytes of a header in a tar
COMPRESSED: dict[bytes, Callable[[BinaryIO], Any]] = {  # by the first bytes of the file
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
MARKS = {  # first bytes of files that are not ZIP archives
    b"\x1f\x8b": "a gzip file: call it .tar.gz",
    b"BZh": "a bzip2 file: call it .tar.bz2",
    b"\xfd7zXZ": "an xz file: call it .tar.xz",
    b"rar!": "a RAR archive: unpack it yourself and give the folder instead",
    b"7z\xbc\xaf": "a 7z archive: unpack it yourself and give the folder instead",
    b"<!doctype": "a web page, not an archive: the owner may want you to sign in",
    b"<html": "a web page, not an archive: the owner may want you to sign in",
}


@dataclass
class Budget:
    """The number of bytes and files that may still be unpacked, from an archive and all archives in
    it."""

    bytes: int = MOST_BYTES
    files: int = MOST_FILES

    def take(self, archive: Path, size: int) -> None:
        """Subtracts a file of this size; raises an error if the budget is exceeded."""
        self.bytes -= size
        self.files -= 1
        if self.bytes < 0 or self.files < 0:
            raise CommunisError(
                f"{archive.name}: holds more than {megabytes(MOST_BYTES)} or {MOST_FILES:,} files, "
                f"which no dataset does; {YOURSELF}"
            )


class ArchiveError(CommunisError):
    """A corrupt archive."""

    def __init__(self, archive: Path, what: str) -> None:
        super().__init__(f"{archive.name}: {what}")
        self.archive = archive


def silent(what: str, done: int, total: int) -> None:
    """Ignores progress."""


def megabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def is_archive(path: Path) -> bool:
    """Returns whether a file is an archive: by its suffix, because spreadsheets and arrays are ZIP
    files, too; by its content if it has no suffix."""
    name = path.name.lower()
    if name.endswith(FOREIGN):
        raise CommunisError(
            f"{path}: archives of this kind cannot be read here; unpack it yourself and give the "
            "folder instead"
        )
    if path.suffix:
        return name.endswith((".zip", *TARS))
    return zipfile.is_zipfile(path) or _is_tar(path)


def unpack(
    archive: Path, folder: Path, progress: Progress = silent, budget: Budget | None = None
) -> None:
    """Unpacks an archive into a new or existing folder; raises a CommunisError if it is corrupt,
    too large, or would write elsewhere. The caller removes the files that were written before the
    error."""
    budget = budget or Budget()
    zipped = archive.name.lower().endswith(".zip") or zipfile.is_zipfile(archive)
    try:
        if zipped:
            _unzip(archive, folder, progress, budget)
        else:
            _untar(archive, folder, progress, budget)
    except CommunisError:
        raise
    except Exception as error:  # readers raise more kinds of errors than they document
        # An error of the disk is not an error of the archive.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        what = _actual_kind(archive, zipped) or f"corrupt or cut short ({said(error)})"
        raise ArchiveError(archive, what) from None


def nested(archive: Path, budget: Budget) -> None:
    """Replaces an archive by its content: by a single folder in it, otherwise by a folder with the
    name of the archive."""
    stem = archive.name[: -len("".join(_endings(archive)))] or "unnamed"
    inside = archive.with_name(f".{archive.name}.open")
    unpack(archive, inside, budget=budget)
    archive.unlink()
    content = list(inside.iterdir())
    if len(content) == 1 and content[0].is_dir():
        move(content[0], archive.with_name(content[0].name))
        inside.rmdir()
    else:
        move(inside, archive.with_name(stem))


def move(source: Path, target: Path) -> None:
    """Moves a folder to its place; if the place exists, moves file by file into it."""
    if not target.exists():
        source.rename(target)
        return
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            path.replace(place)
    shutil.rmtree(source)


def need(size: int, folder: Path) -> None:
    """Raises an error if `size` bytes do not fit on the disk."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if size > free:
        raise CommunisError(
            f"{folder}: {megabytes(size)} are needed, {megabytes(free)} are free on this disk; "
            "make room, or set COMMUNIS_DATA to a folder on another disk"
        )


@contextmanager
def plain_errors(folder: Path) -> Iterator[None]:
    """Turns errors of the disk, of permissions and of copying into one clear line."""
    try:
        yield
    except shutil.Error as error:  # copying a folder: (from, to, reason) for each failure
        failures = error.args[0]
        path, _, reason = failures[0]
        more = len(failures) - 1
        others = f"; {more} more cannot be copied either" if more else ""
        raise CommunisError(
            f"{path}: cannot be copied ({reason}){others}; remove it, or leave the folder where it "
            "is and set data.folder to it"
        ) from None
    except OSError as error:
        where = error.filename or folder
        raise CommunisError(f"{where}: {error.strerror or error}") from None


def _unzip(archive: Path, folder: Path, progress: Progress, budget: Budget) -> None:
    with zipfile.ZipFile(archive) as content:
        for member in content.infolist():
            budget.take(archive, member.file_size)
        members = [m for m in content.infolist() if not _clutter(m.filename)]
        for member in members:
            _check_name(archive, member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):  # 0: made on a system without kinds
                raise _refused(archive, member.filename, _neither(kind == stat.S_IFLNK))
            if member.flag_bits & 1:
                raise _refused(archive, member.filename, "needs a password")
        total = sum(m.file_size for m in members)
        need(total, folder)
        folder.mkdir(parents=True, exist_ok=True)
        done = 0
        for member in members:
            with _refusing(archive, member.filename):
                content.extract(member, folder)
            done += member.file_size
            progress(f"unpacking {archive.name}", done, total)


def _untar(archive: Path, folder: Path, progress: Progress, budget: Budget) -> None:
    size = archive.stat().st_size
    folder.mkdir(parents=True, exist_ok=True)
    with archive.open("rb") as raw, _tar(raw) as content:
        for member in content:  # one pass, because listing decompresses the complete archive
            budget.take(archive, member.size)
            if _clutter(member.name):
                continue
            _check_name(archive, member.name)
            # Links are refused before anything is written, because the checks of tarfile can be
            # evaded. In a folder without links no name leads outside.
            if not (member.isreg() or member.isdir()):
                raise _refused(archive, member.name, _neither(member.issym() or member.islnk()))
            need(member.size, folder)
            with _refusing(archive, member.name):
                content.extract(member, folder, filter="data")
            progress(f"unpacking {archive.name}", min(raw.tell(), size), size)
        # The end mark of a tar precedes the checksum of its compression, which is checked here.
        while content.fileobj is not None and content.fileobj.read(1 << 20):
            pass


def _tar(raw: BinaryIO) -> tarfile.TarFile:
    """Opens a tar, compressed or not."""
    start = raw.read(6)
    raw.seek(0)
    opener = next((opener for mark, opener in COMPRESSED.items() if start.startswith(mark)), None)
    stream = _Limited(opener(raw) if opener else raw)
    return tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:")


class _Limited:
    """A stream that returns no more than MOST_HEADER bytes at once. tarfile reads files in small
    pieces, but a header in one piece, of any size that the archive announces."""

    def __init__(self, stream: Any) -> None:
        self.seek = stream.seek
        self.tell = stream.tell
        self._stream = stream

    def read(self, size: int) -> bytes:
        if size > MOST_HEADER:
            raise ValueError(f"a header of {size} bytes, at most {MOST_HEADER} are read")
        content: bytes = self._stream.read(size)
        return content


def _is_tar(path: Path) -> bool:
    try:
        with path.open("rb") as raw, _tar(raw):
            return True
    except Exception:  # readers raise many kinds of errors for other files
        return False


def _check_name(archive: Path, name: str) -> None:
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or re.match("[A-Za-z]:", name):
        raise _refused(archive, name, "points out of the folder")
    if len(parts.parts) > MOST_FOLDERS:
        raise _refused(archive, name, f"is within more than {MOST_FOLDERS} folders")


@contextmanager
def _refusing(archive: Path, member: str) -> Iterator[None]:
    """Turns the failure to unpack a member into an error that names it."""
    try:
        yield
    except (NotImplementedError, tarfile.FilterError, KeyError) as error:
        raise _refused(archive, member, f"cannot be unpacked: {said(error)}") from None
    except OSError as error:
        if error.errno not in UNPLACEABLE:
            raise
        raise _refused(archive, member, f"cannot be a file name: {error.strerror}") from None


def _refused(archive: Path, member: str, why: str) -> CommunisError:
    return CommunisError(
        f"{archive.name}: refused, because {shortened(member)!r} in it {why}; if you trust it, "
        "unpack it yourself and give the folder instead"
    )


def _neither(link: bool) -> str:
    """Returns why a member that is neither a file nor a folder is refused."""
    return "is a link" if link else "is neither a file nor a folder"


def _clutter(name: str) -> bool:
    """Returns whether macOS added the member to the archive: such files look like data files."""
    path = PurePosixPath(name)
    return "__MACOSX" in path.parts or path.name.startswith("._") or path.name == ".DS_Store"


def _actual_kind(archive: Path, zipped: bool) -> str:
    """Returns what a file seems to be that is not the archive that its name says; empty if that is
    not known."""
    with archive.open("rb") as content:
        start = content.read(512)
    if not start.strip():
        return "an empty file, not an archive"
    if zipped and start[257:262] == b"ustar":
        return "a tar: call it .tar"
    start = start.lstrip().lower()
    for mark, kind in MARKS.items():
        is_tar_advice = "call it" in kind
        if start.startswith(mark) and (zipped or not is_tar_advice):
            return kind
    return ""


def _endings(archive: Path) -> list[str]:
    """Returns the suffixes of an archive: .tar.gz has two."""
    return archive.suffixes[-2:] if archive.name.lower().endswith(TARS[1:]) else [archive.suffix]
