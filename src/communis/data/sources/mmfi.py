"""MM-Fi: 40 people in 4 rooms, 27 actions, sensed by Wi-Fi, mmWave radar, LiDAR and cameras.

MM-Fi (Yang et al., NeurIPS 2023 Datasets and Benchmarks), 297 frames at 10 Hz for each of 40 x 27
actions, as `E01/S01/A01/ground_truth.npy`, (297, 17, 3) joints in metres, and one folder with
frame001 ... frame297 per sensor:

    wifi-csi   .mat   CSIamp, and CSIphase, which is not documented: (3, 114, 10), ten packets of
                      three antennas and 114 subcarriers, so packets come at 100 Hz; amplitudes are
                      -inf where nothing was received: they become NaN
    mmwave     .bin   float64, (points, 5): x, y, z, Doppler velocity, intensity
    lidar      .bin   float64, (points, 3)
    depth      .png   16 bit grey, millimetres; 0 where nothing was measured: these become NaN
    rgb, infra1, infra2  .npy  17 keypoints in pixels, (17, 2): the images are not public

Some frames are empty files: nothing was sensed, so they are NaN.
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
from communis.core.contract import Modality, Task
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

    window: float = 1.0  # length of a window in seconds
    # action: the class; pose: 17 joints; location: the root joint; all: the three at once
    target: Target = "action"
    protocol: int = 3  # actions to read: 1: the 14 daily, 2: the 13 of rehabilitation, 3: all 27
    # modalities to read: csi, csi_phase, mmwave, lidar, depth, rgb, infra1, infra2
    modalities: tuple[str, ...] = ("csi", "mmwave", "lidar")
    environments: tuple[int, ...] = ()  # rooms to read, 1 to 4; empty: all
    subjects: tuple[int, ...] = ()  # people to read, 1 to 40, ten per room; empty: all
    # points of a mmWave or LiDAR frame, at least 1: of more, a regular selection is kept, fewer are
    # padded
    points: int = 128
    depth_step: int = 8  # step between the rows and columns of depth images that are kept

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
        """Returns all files, including the frames of the chosen modalities; a million frames take
        seconds to list."""
        truths = self.files()
        frames = []
        for truth in truths:
            for m in self.modalities:
                folder = truth.parent / SENSORS[m][0]
                if folder.is_dir():
                    frames += [Path(entry.path) for entry in os.scandir(folder)]
        return [*truths, *sorted(frames)]

    def read(self, folder: Path) -> Dataset:
        actions = PROTOCOLS[self.protocol]
        tasks: dict[str, Single] = {
            "action": Classification(len(actions)),
            "pose": Pose(17),
            "location": Localisation(3),
        }
        task: Task
        if self.target == "all":
            task = Several(tuple(tasks), tuple(tasks.values()))
        else:
            task = tasks[self.target]
        labels = tuple(LABELS[a - 1] for a in actions) if task.classes else ()
        units = {m: SENSORS[m][2] for m in self.modalities}
        return Dataset(self._recordings(folder), task, labels, units)

    def _recordings(self, folder: Path) -> Iterator[Recording]:
        actions = PROTOCOLS[self.protocol]
        count = 0
        for truth in matching(folder, ABOUT.files):
            room, subject, action = _numbers(truth)
            if action not in actions:
                continue
            if self.environments and room not in self.environments:
                continue
            if self.subjects and subject not in self.subjects:
                continue
            count += 1
            joints = shaped(truth, array(truth), None, 17, 3).astype(np.float32)
            streams = {m: self._stream(truth.parent, m, len(joints)) for m in self.modalities}
            yield Recording(
                streams,
                self._target(actions.index(action), joints),
                subject=subject,
                scene=room,
                name=truth.parent.relative_to(folder).as_posix(),
            )
        if not count:
            raise CommunisError(
                f"{folder}: no recording of the requested environments, subjects and actions; "
                "change data.environments, data.subjects or data.protocol"
            )

    def _target(self, action: int, joints: Array) -> int | Stream:
        if self.target == "action":
            return action
        pose = joints.reshape(-1, 51)
        location = joints[:, 0]
        columns = {
            "pose": [pose],
            "location": [location],
            "all": [np.full((len(joints), 1), action, np.float32), pose, location],
        }
        return Stream(np.concatenate(columns[self.target], 1), RATE)

    def _stream(self, folder: Path, modality: Modality, frames: int) -> Stream:
        """Returns all frames of a modality; empty files are NaN."""
        subfolder, kind, _ = SENSORS[modality]
        inner = folder / subfolder
        suffix = ENDINGS[kind]
        paths = [inner / f"frame{n:03d}.{suffix}" for n in range(1, frames + 1)]
        count = len(list(inner.glob(f"frame*.{suffix}")))
        missing = next((path for path in paths if not path.is_file()), None)
        if missing or count != frames:
            raise CommunisError(
                f"{inner}: {count} files frame*.{suffix}, expected {frames} as in "
                f"ground_truth.npy{f'; {missing.name} is missing' if missing else ''}"
            )
        reader, shape_if_empty = self._reader(modality)
        read = [reader(path) if path.stat().st_size else None for path in paths]
        shape = next((values.shape for values in read if values is not None), shape_if_empty)
        empty = np.full(shape, np.nan, np.float32)
        for path, values in zip(paths, read, strict=True):
            if values is not None:
                shaped(path, values, *shape)
        stacked = np.stack([empty if values is None else values for values in read])
        if kind == "csi":  # (frames, packets, antennas, subcarriers)
            return Stream(stacked.reshape(-1, *stacked.shape[2:]), RATE * PACKETS, kind=kind)
        return Stream(stacked, RATE, kind=kind)

    def _reader(self, modality: Modality) -> tuple[Callable[[Path], Array], tuple[int, ...]]:
        """Returns the function that reads a frame, and the shape of a frame if all are empty."""
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
    """Returns room, subject and action from .../E01/S01/A01/ground_truth.npy."""
    place = "/".join(truth.absolute().parts[-4:-1])
    match = re.fullmatch(r"E(\d\d)/S(\d\d)/A(\d\d)", place)
    if match:
        room = int(match[1])
        subject = int(match[2])
        action = int(match[3])
        if 1 <= subject <= 40 and 1 <= action <= 27 and room == (subject + 9) // 10:
            return room, subject, action
    raise CommunisError(
        f"{truth}: {place} is not a recording of MM-Fi; expected E01/S01/A01 with "
        "subjects S01-S10 in E01, S11-S20 in E02, S21-S30 in E03, S31-S40 in E04 and actions "
        "A01-A27"
    )


def _packets(path: Path, key: str) -> Array:
    """Returns (packets, antennas, subcarriers)."""
    values = shaped(path, matlab(path, key)[key], 3, 114, PACKETS).astype(np.float32)
    return np.where(np.isfinite(values), values, np.nan).transpose(2, 0, 1)


def _points(path: Path, features: int, points: int) -> Array:
    """Returns (points, features): a regular selection of the points, padded with NaN."""
    data = path.read_bytes()
    if len(data) % (8 * features):
        raise CommunisError(
            f"{path}: {len(data)} bytes, expected a multiple of {8 * features}: {features} float64 "
            "per point"
        )
    values = np.frombuffer(data, "<f8").reshape(-1, features)
    if len(values) > points:
        values = values[np.arange(points) * len(values) // points]
    padded = np.full((points, features), np.nan, np.float32)
    padded[: len(values)] = values
    return padded


def _depth(path: Path, step: int) -> Array:
    """Returns every `step`-th row and column of a depth image; pixels without a measurement are
    NaN."""
    values = grey16(path)[::step, ::step].astype(np.float32)
    return np.where(values == 0, np.nan, values)
