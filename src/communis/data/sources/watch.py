"""Watch: shoulder exercises recorded by a smartwatch: 10 subjects, 7 exercises, both arms,
acceleration and rotation at 50 Hz.

Burns et al., Physiological Measurement 39 (2018) 075007. The recordings are inside the wheel of
`seglearn` 1.2.5 (BSD-3-Clause). They are fetched when they are first used; the package itself is
neither installed nor imported.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np

from communis.core.errors import CommunisError
from communis.core.tasks import Classification
from communis.data.fetch import fetch
from communis.data.recordings.about import About, Wheel
from communis.data.recordings.recording import Dataset, Recording, Stream
from communis.data.recordings.source import Recorded

SHA256 = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
LABELS = ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
UNITS = {"acc": "g", "gyro": "rad/s"}
ABOUT = About(
    licence="BSD-3-Clause",
    citation="Burns et al. 2018, doi:10.1088/1361-6579/aacfd9",
    address="https://github.com/dmbee/seglearn",
    files="watch_dataset.npy",
    count=1,
    wheel=Wheel(
        package="seglearn",
        version="1.2.5",
        sha256="ec6b952c85c9627050102854b372d85951563d3b990df677d7c55547e87413dd",
        size=11_320_941,
        member="seglearn/data/watch_dataset.npy",
        file_sha256=SHA256,
        file_size=18_118_091,
    ),
)


@dataclass(frozen=True)
class Watch(Recorded):
    """Settings of `[data] name = "watch"`."""

    window: float = 2.56  # length of a window in seconds

    def files(self) -> list[Path]:
        """Returns the file; fetches it first if it is missing and no folder is set."""
        if not self.folder and not (self.place / ABOUT.files).exists():
            fetch(self.name, ABOUT, self.place)
        return super().files()

    def read(self, folder: Path) -> Dataset:
        return read(folder / ABOUT.files)


def read(path: Path) -> Dataset:
    return Dataset(recordings(path), Classification(len(LABELS)), LABELS, UNITS)


def recordings(path: Path) -> Iterator[Recording]:
    """Yields the recordings. The file is a pickle, so its hash is checked before it is read."""
    mend = f"get it again with `communis data fetch watch --into {shlex.quote(str(path.parent))}`"
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CommunisError(f"{path}: {error.strerror}; {mend}") from None
    actual = hashlib.sha256(content).hexdigest()
    if actual != SHA256:
        raise CommunisError(f"{path}: sha256 is {actual}, expected {SHA256}; {mend}")
    # The hashed bytes are used, because the file may have been replaced in the meantime.
    raw = np.load(BytesIO(content), allow_pickle=True).item()
    columns = zip(raw["X"], raw["y"], raw["subject"], raw["side"], strict=True)
    for number, (x, y, subject, side) in enumerate(columns):
        yield Recording(
            {"acc": Stream(x[:, :3], 50.0), "gyro": Stream(x[:, 3:], 50.0)},
            target=int(y),
            subject=int(subject),
            session=int(side),
            name=f"recording {number}",
        )
