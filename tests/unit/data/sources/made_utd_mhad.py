"""Files in the official format of UTD-MHAD, with values that tell where they belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.io import savemat

Numbers = NDArray[np.float64]


def inertial(steps: int = 150) -> Numbers:
    """Row r, column c holds 10 c + r / 1000."""
    return 10.0 * np.arange(6) + np.arange(steps)[:, None] / 1000


def skeleton(frames: int = 60) -> Numbers:
    """Joint j, axis x, frame f holds j + x / 10 + f / 1000."""
    joint, axis, frame = np.ogrid[:20, :3, :frames]
    return np.asarray(joint + axis / 10 + frame / 1000)


def write(folder: Path, kind: str, values: object, action: int = 1, trial: int = 1) -> Path:
    """`kind` is Inertial, Skeleton or Depth; subject 3."""
    path = folder / "UTD-MHAD" / kind / f"a{action}_s3_t{trial}_{kind.lower()}.mat"
    path.parent.mkdir(parents=True, exist_ok=True)
    variable = {"Inertial": "d_iner", "Skeleton": "d_skel", "Depth": "d_depth"}[kind]
    savemat(path, {variable: values})
    return path
