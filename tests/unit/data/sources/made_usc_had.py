"""Files in the official format of USC-HAD, with values that tell where they belong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from scipy.io import savemat

NONE: Mapping[str, object] = MappingProxyType({})


def readings(steps: int = 8) -> NDArray[np.float64]:
    """Row r, column c holds 10 c + r / 100."""
    return 10.0 * np.arange(6) + np.arange(steps)[:, None] / 100


def write(
    folder: Path, subject: int, activity: int, trial: int, changed: Mapping[str, object] = NONE
) -> Path:
    """The fields that the owner's files have; None leaves one out."""
    path = folder / "USC-HAD" / f"Subject{subject}" / f"a{activity}t{trial}.mat"
    path.parent.mkdir(parents=True, exist_ok=True)
    fields = {
        "title": "USC Human Motion Database",
        "version": "1.0",
        "subject": str(subject),
        "activity": "walking-forward",
        "activity_number": str(activity),
        "trial": str(trial),
        "sensor_location": "front-right-hip",
        "sensor_readings": readings(),
    } | dict(changed)
    savemat(path, {name: value for name, value in fields.items() if value is not None})
    return path
