"""Real datasets, where their archives are beside the repository."""

from __future__ import annotations

import os
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

ARCHIVES = Path(os.environ.get("COMMUNIS_ARCHIVES", Path(__file__).parents[5] / "shared" / "data"))


@pytest.fixture(scope="session")
def real() -> Callable[[str], Path]:
    """The folder of an unpacked archive, by its name; skips where there is none. Unpacked once,
    into the system's folder for temporary files."""

    def unpacked(name: str) -> Path:
        archive = ARCHIVES / f"{name}.tar.xz"
        if not archive.exists():
            pytest.skip(f"{archive.name} is not in $COMMUNIS_ARCHIVES nor in ../shared/data")
        stat = archive.stat()
        home = Path(tempfile.gettempdir()) / "communis-real-data"
        folder = home / f"{name}-{stat.st_size}-{int(stat.st_mtime)}"
        if not folder.exists():
            home.mkdir(exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=home))
            with tarfile.open(archive) as tar:
                tar.extractall(part, filter="data")
            try:
                part.rename(folder)
            except OSError:  # another process was faster
                assert folder.exists()
        return folder

    return unpacked
