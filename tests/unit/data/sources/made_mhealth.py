"""Files in the official format of MHEALTH, with values that tell where they belong."""

from __future__ import annotations

from pathlib import Path

COLUMNS = (
    *(f"chest_acc{axis}" for axis in "xyz"),
    "chest_ecg1",
    "chest_ecg2",
    *(f"{site}_{s}{a}" for site in ("ankle", "arm") for s in ("acc", "gyro", "mag") for a in "xyz"),
    "label",
)  # as the owner's readme lists them


def value(column: str, row: int) -> float:
    """What a made file holds in a row of a column."""
    return -9.8184 + COLUMNS.index(column) + row / 100


def write(folder: Path, labels: list[int], subject: int = 1) -> Path:
    path = folder / "MHEALTHDATASET" / f"mHealth_subject{subject}.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        "\t".join([*(f"{value(c, row):.5g}" for c in COLUMNS[:-1]), str(label)])
        for row, label in enumerate(labels)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path
