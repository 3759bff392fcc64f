"""Small Wi-CaL files: 199 rows of 420 numbers separated by commas."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(10, 5, (199, 420)).astype(np.float32)


def write(folder: Path, room: str, session: str, name: str, values: np.ndarray) -> Path:
    path = folder / "datasets" / room / session / name
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, values, delimiter=",", fmt="%.9g")
    return path
