"""Folders as people have them, written by generators: the same three people who walk, sit and climb
stairs, in four layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from communis.core.arrays import Array

PEOPLE = ("anna", "bert", "carla")
ACTIVITIES = {"sit": 0.0, "stairs up": 1.2, "walk": 2.0}  # steps per second
SECONDS = 16  # of an activity
RATE = 50
EPOCH = 1_700_000_000


def acceleration(activity: str, seed: int, rate: int = RATE) -> Array:
    """Acceleration in g over the time of an activity, (steps, 3)."""
    time = np.arange(SECONDS * rate) / rate
    sway = 0.25 * np.sin(2 * np.pi * ACTIVITIES[activity] * time)
    noise = np.random.default_rng(seed).normal(0, 0.02, (len(time), 3))
    return np.stack([sway, 0.5 * sway, 1.0 + sway], axis=1) + noise


def day(seed: int) -> tuple[Array, list[str]]:
    """All activities one after the other, twice, with the activity of every row."""
    order = [*ACTIVITIES, *ACTIVITIES]
    parts = [acceleration(name, 10 * seed + i) for i, name in enumerate(order)]
    return np.concatenate(parts), [name for name in order for _ in range(SECONDS * RATE)]


def side_tables(folder: Path) -> None:
    """A file per subject, and beside them tables of people and devices, and notes."""
    for seed, person in enumerate(PEOPLE):
        values, activities = day(seed)
        frame = pd.DataFrame(values, columns=["acc_x", "acc_y", "acc_z"])
        frame.insert(0, "timestamp", 1000 * EPOCH + np.arange(len(frame)) * 1000 // RATE)
        frame["activity"] = activities
        frame.round(4).to_csv(folder / f"{person}.csv", index=False)
    people = {"subject": PEOPLE, "age": (31, 44, 27), "height_cm": (170, 181, 165)}
    pd.DataFrame(people).to_csv(folder / "participants.csv", index=False)
    devices = {"device": ["w1", "w2"], "firmware": ["1.2", "1.3"], "battery": [0.9, 0.8]}
    pd.DataFrame(devices).to_csv(folder / "devices.csv", index=False)
    (folder / "notes.txt").write_text("Anna wore the watch on the left.\nBert forgot it once.\n")


def file_per_sensor_and_trial(folder: Path) -> None:
    """A folder per subject; a file per activity, trial and sensor, with rates of their own."""
    for seed in range(len(PEOPLE)):
        place = folder / f"S{seed + 1:02d}"
        place.mkdir()
        for activity in ACTIVITIES:
            for trial in (1, 2):
                name = activity.replace(" ", "_")
                for sensor, rate, factor in (("acc", 50, 1.0), ("gyro", 100, 40.0)):
                    values = factor * acceleration(activity, 10 * seed + trial, rate)
                    frame = pd.DataFrame(values.round(4), columns=["x", "y", "z"])
                    frame.insert(0, "time_s", np.arange(len(frame)) / rate)
                    frame.to_csv(place / f"{name}_trial{trial}_{sensor}.csv", index=False)


def labels_in_intervals(folder: Path) -> None:
    """A recording per subject, and a table beside it that says from when to when an activity was
    there, in seconds since its first row."""
    for seed, person in enumerate(PEOPLE):
        values, activities = day(seed)
        frame = pd.DataFrame(values.round(4), columns=["ax", "ay", "az"])
        frame.insert(0, "time", EPOCH + 1000 * seed + np.arange(len(frame)) / RATE)
        (folder / "data").mkdir(exist_ok=True)
        (folder / "labels").mkdir(exist_ok=True)
        frame.to_csv(folder / "data" / f"{person}.csv", index=False)
        starts = [SECONDS * i for i in range(len(activities) // (SECONDS * RATE))]
        rows = {
            "start": starts,
            "end": [start + SECONDS - 1 for start in starts],
            "label": activities[:: SECONDS * RATE],
        }
        pd.DataFrame(rows).to_csv(folder / "labels" / f"{person}_labels.csv", index=False)


def bursts(folder: Path) -> None:
    """A device that sends about ten samples at once: all of them have the time of their arrival."""
    for seed, person in enumerate(PEOPLE):
        rng = np.random.default_rng(seed)
        for activity in ACTIVITIES:
            for trial in (1, 2):
                values = acceleration(activity, 10 * seed + trial)
                ends = np.cumsum(rng.integers(8, 13, len(values)))
                batch = np.searchsorted(ends, np.arange(len(values)), "right")
                arrival = np.concatenate(([0], ends))[batch] / RATE
                frame = pd.DataFrame(values.round(4), columns=["ax", "ay", "az"])
                frame.insert(0, "t", 1000 * EPOCH + np.rint(1000 * arrival).astype(np.int64))
                place = folder / person / f"{activity.replace(' ', '-')}_{trial}.csv"
                place.parent.mkdir(exist_ok=True)
                frame.to_csv(place, index=False, sep=";")


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "side tables": side_tables,
    "file per sensor and trial": file_per_sensor_and_trial,
    "labels in intervals": labels_in_intervals,
    "bursts": bursts,
}
