"""Mmfi: 40 people in 4 rooms do 27 actions before Wi-Fi, mmWave radar, LiDAR and cameras.

MM-Fi (Yang et al., NeurIPS 2023 Datasets and Benchmarks), 297 frames at 10 Hz for each of 40 x 27
actions, as `E01/S01/A01/ground_truth.npy`, (297, 17, 3) joints in metres, and one folder with
frame001 ... frame297 per sensor:

    wifi-csi   .mat   CSIamp, and CSIphase, which is not documented: (3, 114, 10), ten packets of
                      three antennas and 114 subcarriers, so packets come at 100 Hz; amplitudes are
                      -inf where nothing was received: NaN here
    mmwave     .bin   float64, (points, 5): x, y, z, Doppler velocity, intensity
    lidar      .bin   float64, (points, 3)
    depth      .png   16 bit grey, millimetres; 0 where nothing was measured: NaN here
    rgb, infra1, infra2  .npy  17 keypoints in pixels, (17, 2): the images are not public

Some frames are files of no bytes: nothing was sensed, so they are NaN.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.tasks import Classification, Localisation, Pose, Several, Single
from communis.data.recordings.about import About
from communis.data.recordings.columns import chosen
from communis.data.recordings.files import array, matching, shaped
from communis.data.recordings.matlab import matlab
from communis.data.recordings.png import grey16
from communis.data.recordings.recording import Dataset, Kind, Recording, Stream
from communis.data.recordings.source import Recorded

ABOUT = About(
    licence="CC BY-NC 4.0 (?)",
    citation="Yang et al. 2023, MM-Fi, NeurIPS Datasets and Benchmarks, arXiv:2305.10345",
    address="https://ntu-aiot-lab.github.io/mm-fi",
    files="E0[1-4]/S[0-4][0-9]/A[0-2][0-9]/ground_truth.npy",
    count=1080,
    how="Follow the download links on the project page and unpack the four parts side by side, so "
    "that the folder holds E01 ... E04.",
)
Target = Literal["action", "pose", "location", "all"]
LABELS = (
    "stretching and relaxing",
    "chest expansion, horizontal",
    "chest expansion, vertical",
    "twist left",
    "twist right",
    "mark time",
    "limb extension left",
    "limb extension right",
    "lunge left-front",
    "lunge right-front",
    "limb extension both",
    "squat",
    "raise left hand",
    "raise right hand",
    "lunge left side",
    "lunge right side",
    "wave left hand",
    "wave right hand",
    "pick up things",
    "throw to left side",
    "throw to right side",
    "kick to left side",
    "kick to right side",
    "body extension left",
    "body extension right",
    "jump up",
    "bow",
)
DAILY = (2, 3, 4, 5, 13, 14, 17, 18, 19, 20, 21, 22, 23, 27)
PROTOCOLS = {
    1: DAILY,
    2: tuple(a for a in range(1, 28) if a not in DAILY),
    3: tuple(range(1, 28)),
}
RATE = 10.0  # frames per second
PACKETS = 10  # of CSI per frame
SENSORS: dict[Modality, tuple[str, Kind, str]] = {  # folder, kind, unit
    "csi": ("wifi-csi", "csi", "a.u."),
    "csi_phase": ("wifi-csi", "csi", "a.u."),
    "mmwave": ("mmwave", "points", "m"),  # of the first three features
    "lidar": ("lidar", "points", "m"),
    "depth": ("depth", "image", "mm"),
    "rgb": ("rgb", "series", "a.u."),
    "infra1": ("infra1", "series", "a.u."),
    "infra2": ("infra2", "series", "a.u."),
}
ENDINGS = {"csi": "mat", "points": "bin", "image": "png", "series": "npy"}


@dataclass(frozen=True)
class Mmfi(Recorded):
    """Settings of `[data] name = "mmfi"`."""

    window: float = 1.0  # seconds per window
    target: Target = "action"  # location: the root joint; all: the three of them at once
    protocol: int = 3  # 1: the 14 daily actions, 2: the 13 of rehabilitation, 3: all 27
    modalities: tuple[str, ...] = (
        "csi",
        "mmwave",
        "lidar",
    )  # csi_phase, depth, rgb, infra1, infra2
    environments: tuple[int, ...] = ()  # rooms 1-4; empty: all
    subjects: tuple[int, ...] = ()  # people 1-40, ten per room; empty: all
    points: int = 128  # per mmWave or LiDAR frame: of more, evenly many are kept; fewer are padded
    depth_step: int = 8  # every so manieth row and column of depth images is kept

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen("modalities", self.modalities, SENSORS)
        if not self.modalities:
            raise CommunisError(f"modalities: none; there are {', '.join(SENSORS)}")
        if self.protocol not in PROTOCOLS:
            raise CommunisError(f"protocol must be 1, 2 or 3, got {self.protocol}")
        if self.points < 1 or self.depth_step < 1:
            raise CommunisError("points and depth_step must be at least 1")

    def sources(self) -> list[Path]:
        """With the frames of the chosen modalities: a million of them take seconds to look at."""
        found = self.files()
        folders = [truth.parent / SENSORS[m][0] for truth in found for m in self.modalities]
        frames = (Path(entry.path) for at in folders if at.is_dir() for entry in os.scandir(at))
        return [*found, *sorted(frames)]

    def read(self, folder: Path) -> Dataset:
        actions = PROTOCOLS[self.protocol]
        tasks: dict[str, Single] = {
            "action": Classification(len(actions)),
            "pose": Pose(17),
            "location": Localisation(3),
        }
        every = Several(tuple(tasks), tuple(tasks.values()))
        task = every if self.target == "all" else tasks[self.target]
        labels = tuple(LABELS[a - 1] for a in actions) if task.classes else ()
        units = {m: SENSORS[m][2] for m in self.modalities}
        return Dataset(self._recordings(folder), task, labels, units)

    def _recordings(self, folder: Path) -> Iterator[Recording]:
        actions, some = PROTOCOLS[self.protocol], False
        for truth in matching(folder, ABOUT.files):
            room, subject, action = _numbers(truth)
            if (
                action not in actions
                or room not in (self.environments or (room,))
                or subject not in (self.subjects or (subject,))
            ):
                continue
            some = True
            joints = shaped(truth, array(truth), None, 17, 3).astype(np.float32)
            streams = {m: self._stream(truth.parent, m, len(joints)) for m in self.modalities}
            yield Recording(
                streams,
                self._target(actions.index(action), joints),
                subject=subject,
                scene=room,
                name=truth.parent.relative_to(folder).as_posix(),
            )
        if not some:
            raise CommunisError(
                f"{folder}: no recording of the environments, subjects and actions asked for"
            )

    def _target(self, action: int, joints: Array) -> int | Stream:
        if self.target == "action":
            return action
        pose, location = joints.reshape(-1, 51), joints[:, 0]
        columns = {
            "pose": [pose],
            "location": [location],
            "all": [np.full((len(joints), 1), action, np.float32), pose, location],
        }
        return Stream(np.concatenate(columns[self.target], 1), RATE)

    def _stream(self, folder: Path, modality: Modality, frames: int) -> Stream:
        within, kind, _ = SENSORS[modality]
        inner, ending = folder / within, ENDINGS[kind]
        paths = [inner / f"frame{n:03d}.{ending}" for n in range(1, frames + 1)]
        found = len(list(inner.glob(f"frame*.{ending}")))
        missing = next((path for path in paths if not path.is_file()), None)
        if missing or found != frames:
            raise CommunisError(
                f"{inner}: {found} files frame*.{ending}, expected {frames} as in "
                f"ground_truth.npy{f'; {missing.name} is missing' if missing else ''}"
            )
        reader, nothing = self._reader(modality)
        read = [reader(path) if path.stat().st_size else None for path in paths]
        shape = next((values.shape for values in read if values is not None), nothing)
        blank = np.full(shape, np.nan, np.float32)
        for path, values in zip(paths, read, strict=True):
            if values is not None:
                shaped(path, values, *shape)
        stacked = np.stack([blank if values is None else values for values in read])
        if kind == "csi":  # (frames, packets, antennas, subcarriers)
            return Stream(stacked.reshape(-1, *stacked.shape[2:]), RATE * PACKETS, kind=kind)
        return Stream(stacked, RATE, kind=kind)

    def _reader(self, modality: Modality) -> tuple[Callable[[Path], Array], tuple[int, ...]]:
        """What reads a frame, and the shape of one in which nothing was sensed."""
        if modality in ("csi", "csi_phase"):
            key = "CSIamp" if modality == "csi" else "CSIphase"
            return lambda path: _packets(path, key), (PACKETS, 3, 114)
        if modality in ("mmwave", "lidar"):
            features = 5 if modality == "mmwave" else 3
            return lambda path: _points(path, features, self.points), (self.points, features)
        if modality == "depth":
            return lambda path: _depth(path, self.depth_step), (1, 1)
        return lambda path: shaped(path, array(path), 17, 2).reshape(34).astype(np.float32), (34,)


def _numbers(truth: Path) -> tuple[int, int, int]:
    """Room, subject and action from .../E01/S01/A01/ground_truth.npy."""
    parts = truth.absolute().parts[-4:-1]
    found = [
        re.fullmatch(f"{letter}(\\d\\d)", part) for letter, part in zip("ESA", parts, strict=True)
    ]
    room, subject, action = (int(f[1]) if f else 0 for f in found)
    if not (1 <= subject <= 40 and 1 <= action <= 27 and room == (subject + 9) // 10):
        raise CommunisError(
            f"{truth}: {'/'.join(parts)} is not a recording of MM-Fi; expected E01/S01/A01 with "
            "subjects S01-S10 in E01, S11-S20 in E02, S21-S30 in E03, S31-S40 in E04 and actions "
            "A01-A27"
        )
    return room, subject, action


def _packets(path: Path, key: str) -> Array:
    """(packets, antennas, subcarriers)."""
    values = shaped(path, matlab(path, key)[key], 3, 114, PACKETS).astype(np.float32)
    return np.where(np.isfinite(values), values, np.nan).transpose(2, 0, 1)


def _points(path: Path, features: int, points: int) -> Array:
    """(points, features): evenly many of the file's, or padded with NaN."""
    data = path.read_bytes()
    if len(data) % (8 * features):
        raise CommunisError(
            f"{path}: {len(data)} bytes, expected a multiple of {8 * features}: {features} float64 "
            "per point"
        )
    found = np.frombuffer(data, "<f8").reshape(-1, features)
    kept = found[np.arange(points) * len(found) // points] if len(found) > points else found
    padded = np.full((points, features), np.nan, np.float32)
    padded[: len(kept)] = kept
    return padded


def _depth(path: Path, step: int) -> Array:
    values = grey16(path)[::step, ::step].astype(np.float32)
    return np.where(values == 0, np.nan, values)
