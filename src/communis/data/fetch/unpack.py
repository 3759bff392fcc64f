"""Unpacking archives of strangers: nothing lands outside the folder, nothing half-done is left."""

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
Progress = Callable[[str, int, int], None]  # what is going on, bytes done, of how many (0: unknown)
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MOST_BYTES = 1 << 40  # of all that an archive holds, archives in it included
MOST_FILES = 2_000_000
MOST_NESTED = 4  # archives in archives in archives ...
FOREIGN = (".rar", ".7z", ".zipx", ".tar.zst")  # archives that Python cannot read
UNPLACEABLE = (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL)
MOST_FOLDERS = 64  # in folders in folders ..., of a file in an archive
MOST_HEADER = 1 << 24  # bytes that a tar may tell of one of its files
COMPRESSED: dict[bytes, Callable[[BinaryIO], Any]] = {  # how compressed files begin
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
MARKS = {  # how other files than ZIP archives begin
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
    """What may still be unpacked: one for an archive and all that are in it."""

    bytes: int = MOST_BYTES
    files: int = MOST_FILES

    def take(self, archive: Path, size: int) -> None:
        """A file of this size; an error if that is too much in all."""
        self.bytes -= size
        self.files -= 1
        if self.bytes < 0 or self.files < 0:
            raise CommunisError(
                f"{archive.name}: holds more than {megabytes(MOST_BYTES)} or {MOST_FILES:,} files, "
                f"as no dataset does; {YOURSELF}"
            )


class ArchiveError(CommunisError):
    """An archive that is corrupt, whoever has made or transferred it."""

    def __init__(self, archive: Path, what: str) -> None:
        super().__init__(f"{archive.name}: {what}")
        self.archive = archive


def silent(what: str, done: int, total: int) -> None:
    """Progress that nobody sees."""


def megabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def is_archive(path: Path) -> bool:
    """By the ending, for spreadsheets and arrays are ZIP files too; by the content without one."""
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
    """The content of an archive below a new or existing folder; a CommunisError if it is corrupt,
    too much, or would write elsewhere. What was written until then is the caller's to remove."""
    budget = budget or Budget()
    zipped = archive.name.lower().endswith(".zip") or zipfile.is_zipfile(archive)
    try:
        if zipped:
            _unzip(archive, folder, progress, budget)
        else:
            _untar(archive, folder, progress, budget)
    except CommunisError:
        raise
    except Exception as error:  # of what is damaged, readers raise more kinds than they state
        if isinstance(error, OSError) and error.errno is not None:  # the disk's, not the archive's
            raise
        what = _what_instead(archive, zipped) or f"corrupt or cut short ({said(error)})"
        raise ArchiveError(archive, what) from None


def nested(archive: Path, budget: Budget) -> None:
    """Replaces an archive by its content: in its place if that is one folder, else in a folder
    called like the archive. Owners put archives into archives."""
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
    """A folder to its place; where there is one already, file by file into it."""
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
    """An error if so many bytes do not fit on the disk."""
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
    """A full disk, a missing permission or what cannot be copied as one clear line."""
    try:
        yield
    except shutil.Error as error:  # of copying a folder: (from, to, why) for each failure
        (path, _, why), *more = error.args[0]
        others = f"; {len(more)} more cannot either" if more else ""
        raise CommunisError(
            f"{path}: cannot be copied ({why}){others}; remove it, or leave the folder where it is "
            "and set data.folder to it"
        ) from None
    except OSError as error:
        where = error.filename or folder
        raise CommunisError(f"{where}: {error.strerror or error}") from None


def _unzip(archive: Path, folder: Path, progress: Progress, budget: Budget) -> None:
    with zipfile.ZipFile(archive) as content:
        for member in content.infolist():
            budget.take(archive, member.file_size)
        members = [m for m in content.infolist() if not _clutter(m.filename)]
        total, done = sum(m.file_size for m in members), 0
        for member in members:
            _check_name(archive, member.filename)
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):  # 0: not made where files have kinds
                raise _refused(archive, member.filename, _neither(kind == stat.S_IFLNK))
            if member.flag_bits & 1:
                raise _refused(archive, member.filename, "needs a password")
        need(total, folder)
        folder.mkdir(parents=True, exist_ok=True)
        for member in members:
            with _refusing(archive, member.filename):
                content.extract(member, folder)
            done += member.file_size
            progress(f"unpacking {archive.name}", done, total)


def _untar(archive: Path, folder: Path, progress: Progress, budget: Budget) -> None:
    size = archive.stat().st_size
    folder.mkdir(parents=True, exist_ok=True)
    with archive.open("rb") as raw, _tar(raw) as content:
        for member in content:  # one pass: to list a compressed archive is to unpack it
            budget.take(archive, member.size)
            if _clutter(member.name):
                continue
            _check_name(archive, member.name)
            # Before anything of it is written, for what tarfile itself checks of a link can be
            # evaded. In a folder without links no later name leads out.
            if not (member.isreg() or member.isdir()):
                raise _refused(archive, member.name, _neither(member.issym() or member.islnk()))
            need(member.size, folder)
            with _refusing(archive, member.name):
                content.extract(member, folder, filter="data")
            progress(f"unpacking {archive.name}", min(raw.tell(), size), size)
        # The end mark of a tar comes before the checksum of its compression: read that too.
        while content.fileobj is not None and content.fileobj.read(1 << 20):
            pass


def _tar(raw: BinaryIO) -> tarfile.TarFile:
    """A tar, compressed or not."""
    start = raw.read(6)
    raw.seek(0)
    opener = next((opener for mark, opener in COMPRESSED.items() if start.startswith(mark)), None)
    stream = _Sparing(opener(raw) if opener else raw)
    return tarfile.open(fileobj=cast("IO[bytes]", stream), mode="r:")


class _Sparing:
    """A stream that gives no more than MOST_HEADER bytes at once: files are read in small pieces,
    but what a tar tells of a file is read in one, however much it announces."""

    def __init__(self, stream: Any) -> None:
        self.seek = stream.seek
        self.tell = stream.tell
        self._stream = stream

    def read(self, size: int) -> bytes:
        if size > MOST_HEADER:
            raise ValueError(f"a header of {size} bytes, at most {MOST_HEADER} are read")
        found: bytes = self._stream.read(size)
        return found


def _is_tar(path: Path) -> bool:
    try:
        with path.open("rb") as raw, _tar(raw):
            return True
    except Exception:  # whatever it is
        return False


def _check_name(archive: Path, name: str) -> None:
    parts = PurePosixPath(name.replace("\\", "/"))
    if parts.is_absolute() or ".." in parts.parts or re.match("[A-Za-z]:", name):
        raise _refused(archive, name, "points out of the folder")
    if len(parts.parts) > MOST_FOLDERS:
        raise _refused(archive, name, f"lies in more than {MOST_FOLDERS} folders")


@contextmanager
def _refusing(archive: Path, member: str) -> Iterator[None]:
    """What cannot be unpacked as a file of its own is refused by its name."""
    try:
        yield
    except (NotImplementedError, tarfile.FilterError, KeyError) as error:
        raise _refused(archive, member, f"cannot be unpacked: {said(error)}") from None
    except OSError as error:
        if error.errno not in UNPLACEABLE:
            raise
        raise _refused(archive, member, f"has a name for no file: {error.strerror}") from None


def _refused(archive: Path, member: str, why: str) -> CommunisError:
    return CommunisError(
        f"{archive.name}: refused, for {shortened(member)!r} in it {why}; if you trust it, unpack "
        "it yourself and give the folder instead"
    )


def _neither(link: bool) -> str:
    """Why a member that is neither a file nor a folder is refused: no dataset needs one."""
    return "is a link" if link else "is neither a file nor a folder"


def _clutter(name: str) -> bool:
    """What macOS adds to archives: shadows that look like data files."""
    path = PurePosixPath(name)
    return "__MACOSX" in path.parts or path.name.startswith("._") or path.name == ".DS_Store"


def _what_instead(archive: Path, zipped: bool) -> str:
    """What a file that is not the archive that its name says seems to be."""
    with archive.open("rb") as content:
        start = content.read(512)
    if not start.strip():
        return "an empty file, not an archive"
    if zipped and start[257:262] == b"ustar":
        return "a tar: call it .tar"
    known = {mark: what for mark, what in MARKS.items() if zipped or "call it" not in what}
    bare = start.lstrip().lower()
    return next((what for mark, what in known.items() if bare.startswith(mark)), "")


def _endings(archive: Path) -> list[str]:
    return archive.suffixes[-2:] if archive.name.lower().endswith(TARS[1:]) else [archive.suffix]
