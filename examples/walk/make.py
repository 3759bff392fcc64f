"""Makes the recordings of this folder: three people with an accelerometer at the hip, who walk, sit
and climb stairs. They are computed, not measured.

    python examples/walk/make.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
RATE = 10  # Hz
SECONDS = 16  # of an activity
STEPS = {"walk": 1.8, "sit": 0.0, "stairs": 1.1}  # per second
PEOPLE = {"anna": 31, "ben": 44, "chloe": 27}  # with their age


def main() -> None:
    labels = ["file,start,end,activity"]
    for number, person in enumerate(PEOPLE):
        rng = np.random.default_rng(number)
        lines = ["time_s,acc_x,acc_y,acc_z"]
        order = np.roll([*STEPS], number)
        for place, activity in enumerate(order):
            time = place * SECONDS + np.arange(SECONDS * RATE) / RATE
            swing = 0.3 if STEPS[activity] else 0.0
            sway = swing * np.sin(2 * np.pi * STEPS[activity] * time + number)
            tilt = 0.2 if activity == "stairs" else 0.0
            acc = np.stack([sway / 2 + tilt, sway / 3, 1 + sway], 1)
            acc += rng.normal(0, 0.02, acc.shape)
            for t, (x, y, z) in zip(time, acc, strict=True):
                lines.append(f"{t:.1f},{x:.2f},{y:.2f},{z:.2f}")
            labels.append(f"{person}.csv,{place * SECONDS},{(place + 1) * SECONDS - 1},{activity}")
        _write(FOLDER / "recordings" / f"{person}.csv", lines)
    _write(FOLDER / "labels.csv", labels)
    _write(FOLDER / "participants.csv", ["person,age", *(f"{p},{a}" for p, a in PEOPLE.items())])


def _write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
