"""Small recordings whose values tell where they come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from communis.core.tasks import Classification
from communis.data.recordings.cache import kept
from communis.data.recordings.cut import Cut
from communis.data.recordings.recording import Dataset, Recording, Stream
from communis.data.recordings.windows import Windows


def ramp(steps: int, rate: float = 10.0, begin: float = 0.0, start: float = 0.0) -> Stream:
    """Two channels that count: a value and its negative."""
    values = begin + np.arange(steps, dtype=np.float32)
    return Stream(np.stack([values, -values], 1), rate, start)


def recording(steps: int, target: Any = 0, subject: int = 0, **changes: Any) -> Recording:
    return Recording({"a": ramp(steps)}, target, subject, **changes)


def dataset(*recordings: Recording, classes: int = 3) -> Dataset:
    return Dataset(recordings, Classification(classes))


def cut(folder: Path, *recordings: Recording, seconds: float = 1.0, **how: Any) -> Windows:
    return kept(dataset(*recordings), Cut(seconds, **how), folder / "windows")
