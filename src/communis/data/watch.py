"""Watch: shoulder exercises recorded by a smartwatch. 10 subjects, 7 exercises, both arms, acc +
gyro at 50 Hz.

Burns et al., Physiological Measurement 39 (2018) 075007. The recordings are inside the `seglearn`
wheel (BSD-3-Clause); the file is read from the installed package without importing it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import numpy as np

from communis.core import CommunisError
from communis.data.recording import Dataset, Recording
from communis.data.windows import Windows, cut
from communis.extras import command
from communis.streams import Streams

LICENCE = "BSD-3-Clause"
CITATION = "Burns et al. 2018, doi:10.1088/1361-6579/aacfd9"
SHA256 = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
EXTRA = "watch"


@dataclass(frozen=True)
class Watch:
    """Settings of `[data] name = "watch"`."""

    window: float = 2.56  # seconds per window; windows do not overlap

    def __post_init__(self) -> None:
        if self.window <= 0:
            raise CommunisError(f"window must be a positive number of seconds, got {self.window}")

    def load(self, streams: Streams) -> Windows:
        return cut(read(location()), self.window)


def location() -> Path:
    try:
        return Path(str(distribution("seglearn").locate_file("seglearn/data/watch_dataset.npy")))
    except PackageNotFoundError:
        raise CommunisError(
            "the watch recordings are inside the seglearn package, which is not installed: "
            f"{command(EXTRA)}"
        ) from None


def read(path: Path) -> Dataset:
    """The file is a pickle, so nothing of it is unpacked before its hash is known to be right."""
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CommunisError(
            f"{path}: {error.strerror}; reinstall with: pip install --force-reinstall seglearn"
        ) from None
    if found != SHA256:
        raise CommunisError(
            f"{path}: sha256 is {found}, expected {SHA256}; "
            "reinstall with: pip install --force-reinstall seglearn==1.2.5"
        )
    raw = np.load(path, allow_pickle=True).item()
    recordings = [
        Recording(
            {"acc": x[:, :3], "gyro": x[:, 3:]},
            {"acc": 50.0, "gyro": 50.0},
            int(y),
            int(subject),
            int(side),
        )
        for x, y, subject, side in zip(raw["X"], raw["y"], raw["subject"], raw["side"], strict=True)
    ]
    return Dataset(tuple(recordings), tuple(str(name) for name in raw["y_labels"]))
