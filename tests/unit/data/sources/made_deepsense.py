"""A small DeepSense 6G scenario: sequences of frames, and the owner's tables of series."""

from __future__ import annotations

from pathlib import Path

import numpy as np

LENGTH = 22  # frames in a sequence: five series that look ten frames ahead
PARTS = {"train": (0, 2), "val": (1,), "test": (3,)}  # sequences, as the owner deals them out


def blocked(frame: int) -> int:
    """The link is blocked in the last four frames of each sequence, and once in its middle."""
    place = (frame - 1) % LENGTH
    return int(place >= LENGTH - 4 or place == 9)


def powers(frame: int) -> np.ndarray:
    return (frame + np.arange(64) / 64).astype(np.float32)


def write(folder: Path, scenario: int = 17, lidar: bool = False) -> Path:
    home = folder / f"scenario{scenario}"
    for kind in ("mmWave_data", "label_data"):
        (home / "unit1" / kind).mkdir(parents=True)
    for frame in range(1, 4 * LENGTH + 1):
        text = "\n".join(f"{value:.18g}" for value in powers(frame)) + "\n"
        (home / f"unit1/mmWave_data/mmWave_power_{frame}.txt").write_text(text, "utf-8")
        (home / f"unit1/label_data/label_{frame}.txt").write_text(f"{blocked(frame)}\n", "utf-8")
    for future in (1, 5, 10):
        (home / f"future-{future}").mkdir()
        for part, sequences in PARTS.items():
            path = home / f"future-{future}" / f"scenario{scenario}_dev_series_{part}.csv"
            path.write_text(table(sequences, future, lidar), "utf-8")
    return home


def table(sequences: tuple[int, ...], future: int, lidar: bool = False) -> str:
    """Series in an order that is not that of time, as in the official tables."""
    head = ["index", *(f"unit1_pwr_60ghz_{n}" for n in range(1, 9))]
    head += [f"unit1_lidar_{n}" for n in range(1, 9)] if lidar else []
    head += [f"blockage_{n}" for n in range(1, future + 1)] if future > 1 else ["blockage_final"]
    starts = [LENGTH * s + 1 + n for s in sequences for n in range(LENGTH - 17)][::-1]
    lines = [",".join(head)]
    for index, start in enumerate(starts, start=1):
        frames = range(start, start + 8)
        cells = [f"./unit1/mmWave_data/mmWave_power_{n}.txt" for n in frames]
        cells += [f"./unit1/lidar_data/lidar_{n}.mat" for n in frames] if lidar else []
        cells += [str(blocked(start + 8 + n)) for n in range(future)]
        lines.append(",".join([str(index), *cells]))
    return "\n".join(lines) + "\n"
