"""A wheel that pip takes for one, with a file in it."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from communis.data.recordings.about import Wheel


def write(folder: Path, package: str, content: bytes) -> tuple[Path, Wheel]:
    """The wheel's path, and what a source would declare of it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{package}-1.0-py3-none-any.whl"
    about = f"{package}-1.0.dist-info"
    member = f"{package}/data/recordings.npy"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, content)
        archive.writestr(
            f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{about}/RECORD", "")
    packed = path.read_bytes()
    wheel = Wheel(
        package=package,
        version="1.0",
        sha256=hashlib.sha256(packed).hexdigest(),
        size=len(packed),
        member=member,
        file_sha256=hashlib.sha256(content).hexdigest(),
        file_size=len(content),
    )
    return path, wheel
