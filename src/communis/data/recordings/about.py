"""About: what a dataset source declares of itself: owner's terms, where to get it, what to find."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """One file that the owner offers for download without asking for a name or a signature."""

    url: str
    sha256: str = ""  # of the file, where known
    size: int = 0  # bytes, where known


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
    """Facts about a dataset. A fact that is not known is left empty, never guessed."""

    licence: str  # short; "(?)" behind it: not checked with the owner
    citation: str = ""  # authors, year and a DOI or address of the paper
    address: str = ""  # the owner's page
    files: str = ""  # what the folder must hold, as a pattern: "USC-HAD/Subject*/a*t*.mat"
    count: int = 0  # how many such files the complete dataset has
    downloads: tuple[Download, ...] = ()  # empty: the owner wants to be asked, see `how`
    wheel: Wheel | None = None  # the wheel that carries it, where it is published as one
    how: str = ""  # how to get it by hand, one or two sentences
    extra: str = ""  # the communis extra that is needed to read it
