"""About: the facts that a dataset source declares: licence, address, expected files, downloads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """One file that the owner offers for download without registration or agreement."""

    url: str
    sha256: str = ""  # of the file; empty: not known
    size: int = 0  # bytes; 0: not known


@dataclass(frozen=True)
class Wheel:
    """One file that the owner published inside a wheel, a Python package as pip downloads it."""

    package: str
    version: str
    sha256: str  # of the wheel
    size: int  # bytes of the wheel
    member: str  # the file's path in the wheel
    file_sha256: str  # of the file
    file_size: int  # bytes of the file

    @property
    def name(self) -> str:
        return f"{self.package}-{self.version}-py3-none-any.whl"

    @property
    def file(self) -> str:
        return self.member.rpartition("/")[2]


@dataclass(frozen=True)
class About:
    """Facts about a dataset. An unknown fact is left empty, never guessed."""

    licence: str  # short name; with "(?)": not confirmed by the owner
    citation: str = ""  # authors, year and a DOI or address of the paper
    address: str = ""  # the owner's page
    files: str = ""  # pattern of the files in the folder: "USC-HAD/Subject*/a*t*.mat"
    count: int = 0  # number of such files in the complete dataset
    downloads: tuple[Download, ...] = ()  # empty: the owner must be asked, see `how`
    wheel: Wheel | None = None  # the wheel that contains it, if it is published as one
    how: str = ""  # how to get it by hand, in one or two sentences
    extra: str = ""  # the extra of communis that is needed to read it
