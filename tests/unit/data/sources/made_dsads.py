"""Files in the official format of DSADS, with values that tell where they belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def values(segment: int = 1) -> NDArray[np.float64]:
    """Row r, column c of a segment holds c + segment / 100 + r / 10000."""
    return np.arange(45) + segment / 100 + np.arange(125)[:, None] / 1e4


def write(
    folder: Path,
    activity: int,
    person: int,
    segment: int,
    rows: NDArray[np.float64] | None = None,
    delimiter: str = ",",
) -> Path:
    path = folder / "DSADS" / "data" / f"a{activity:02d}" / f"p{person}" / f"s{segment:02d}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savetxt(path, values(segment) if rows is None else rows, "%.7g", delimiter)
    return path
