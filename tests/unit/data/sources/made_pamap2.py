"""Files in the official format of PAMAP2, with values that tell where they belong."""

from __future__ import annotations

from pathlib import Path

import numpy as np

SITES = ("hand", "chest", "ankle")
COLUMNS = [
    "time",
    "activity",
    "heart",
    *(
        f"{site}_{name}"
        for site in SITES
        for name in (
            "temperature",
            *(f"{kind}{axis}" for kind in ("acc16", "acc6", "gyro", "mag") for axis in "xyz"),
            *(f"orientation{n}" for n in range(4)),
        )
    ),
]  # as the owner's readme lists them


def value(column: str, row: int) -> float:
    """What a made file holds in a row of a column of an inertial unit."""
    return round(COLUMNS.index(column) + row / 1000, 5)


def rows(activities: list[int], start: float = 8.38) -> np.ndarray:
    """(n, 54) at 100 Hz; heart rate in every eleventh row."""
    n = len(activities)
    table = np.array([[value(c, row) for c in COLUMNS] for row in range(n)])
    table[:, 0] = np.round(start + np.arange(n) / 100, 2)
    table[:, 1] = activities
    table[:, 2] = np.where(np.arange(n) % 11 == 0, 100 + np.arange(n) // 11, np.nan)
    return table


def write(folder: Path, table: np.ndarray, subject: int = 101, session: str = "Protocol") -> Path:
    path = folder / "PAMAP2_Dataset" / session / f"subject{subject}.dat"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [" ".join("NaN" if np.isnan(x) else f"{x:.6g}" for x in row) for row in table]
    path.write_text("\n".join(lines) + "\n")
    return path
