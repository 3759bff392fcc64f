"""UTD-MHAD: 8 people, 27 actions, a wrist (or thigh) inertial unit, Kinect skeleton and depth.

Chen, Jafari and Kehtarnavaz, UTD-MHAD, ICIP 2015. `UTD-MHAD/Inertial/aX_sY_tZ_inertial.mat`,
action X, subject Y, trial Z: acc xyz [g] and gyro xyz [deg/s] at 50 Hz; beside it `Skeleton`, 20
joints [m], and `Depth`, 240 x 320 pixels [mm] with 0 for the background. A trial without a skeleton
or depth file lacks that modality.

The unit was on the right wrist in actions 1 to 21 and on the right thigh in 22 to 27. It is one
modality, because its site would reveal the action. The owner states about 30 frames per second for
the camera, but its frames cover the length of the inertial recording at 19 frames per second on
average (docs/reference/data/utd_mhad.md): frame k of n is at k/n of that length. Frames are put on
a regular grid of 20 Hz: joints are interpolated, images are those of the previous frame.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Task
from communis.core.errors import CommunisError
from communis.core.tasks import Classification, Pose, Several
from communis.data.recordings.about import About
from communis.data.recordings.columns import chosen
from communis.data.recordings.files import matching, shaped
from communis.data.recordings.matlab import matlab
from communis.data.recordings.recording import Dataset, Recording, Stream, on_grid
from communis.data.recordings.source import Recorded
from communis.data.recordings.splits import SplitKind

ABOUT = About(
    licence="research use (?)",
    citation="Chen, Jafari and Kehtarnavaz 2015, doi:10.1109/ICIP.2015.7350781",
    address="https://personal.utdallas.edu/~kehtar/UTD-MHAD.html",
    files="UTD-MHAD/Inertial/a*_s*_t*_inertial.mat",
    count=861,
    how="Get Inertial, Skeleton and, if wanted, Depth from the owner's page and unpack them side "
    "by side; RGB is not read.",
)
LABELS = (
    "swipe left",
    "swipe right",
    "wave",
    "clap",
    "throw",
    "arm cross",
    "basketball shoot",
    "draw x",
    "draw circle clockwise",
    "draw circle counter clockwise",
    "draw triangle",
    "bowling",
    "boxing",
    "baseball swing",
    "tennis swing",
    "arm curl",
    "tennis serve",
    "push",
    "knock",
    "catch",
    "pickup and throw",
    "jog",
    "walk",
    "sit to stand",
    "stand to sit",
    "lunge",
    "squat",
)
UNITS = {"acc": "g", "gyro": "deg/s", "skeleton": "m", "depth": "mm"}
RATE = 50.0
FRAME_RATE = 20.0
JOINTS, HIP_CENTRE = 20, 3
HEIGHT, WIDTH = 240, 320


@dataclass(frozen=True)
class UtdMhad(Recorded):
    """Settings of `[data] name = "utd_mhad"`."""

    window: float = 2.0  # length of a window in seconds; the shortest trial lasts 2.14 s
    stride: float = 1.0  # seconds from one window to the next; 0: windows do not overlap
    split: SplitKind = "trial"  # unit that is never in training and test at once
    # action: the class; pose: 20 joints in the middle of a window; all: both at once
    target: Literal["action", "pose", "all"] = "action"
    # modalities to read: acc, gyro, skeleton, depth; empty: all except the target
    inputs: tuple[str, ...] = ()
    # rows and columns of the reduced depth images, divisors of 240 and 320
    pixels: tuple[int, int] = (24, 32)

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen("inputs", self.inputs, UNITS)
        if self._posed and "skeleton" in self.inputs:
            raise CommunisError(
                f"utd_mhad: the skeleton cannot be an input with data.target = {self.target!r}, "
                "which predicts it; remove it from data.inputs"
            )
        rows, columns = self.pixels
        if rows < 1 or columns < 1 or HEIGHT % rows or WIDTH % columns:
            raise CommunisError(
                f"utd_mhad: pixels must divide {HEIGHT} rows and {WIDTH} columns, got {self.pixels}"
            )

    def sources(self) -> list[Path]:
        inertial = self.files()
        others = []
        for path in inertial:
            others += [_beside(path, "Skeleton"), _beside(path, "Depth")]
        return inertial + [path for path in others if path.is_file()]

    def read(self, folder: Path) -> Dataset:
        paths = sorted(matching(folder, ABOUT.files), key=_numbers)
        inputs = self.inputs or tuple(m for m in UNITS if not self._posed or m != "skeleton")
        action = Classification(len(LABELS))
        pose = Pose(JOINTS, HIP_CENTRE)
        tasks: dict[str, Task] = {
            "action": action,
            "pose": pose,
            "all": Several(("action", "pose"), (action, pose)),
        }
        labels = LABELS if tasks[self.target].classes else ()
        units = {m: UNITS[m] for m in inputs}
        return Dataset(self._recordings(folder, paths, inputs), tasks[self.target], labels, units)

    @property
    def _posed(self) -> bool:
        """Whether the pose is a target."""
        return self.target != "action"

    def _recordings(
        self, folder: Path, paths: list[Path], inputs: tuple[str, ...]
    ) -> Iterator[Recording]:
        for path in paths:
            action, subject, trial = _numbers(path)
            values = shaped(path, matlab(path, "d_iner")["d_iner"], None, 6).astype(np.float32)
            seconds = len(values) / RATE
            skeleton = _beside(path, "Skeleton")
            depth = _beside(path, "Depth")
            streams = {"acc": Stream(values[:, :3], RATE), "gyro": Stream(values[:, 3:], RATE)}
            if self._posed and not skeleton.is_file():
                raise CommunisError(
                    f"{path}: its pose is missing: there is no {skeleton}; get the skeletons, or "
                    "set data.target = 'action'"
                )
            if skeleton.is_file() and (self._posed or "skeleton" in inputs):
                streams["skeleton"] = _skeleton(skeleton, seconds)
            if depth.is_file() and "depth" in inputs:
                streams["depth"] = _depth(depth, seconds, self.pixels)
            target = self._target(action - 1, streams)
            streams = {m: streams[m] for m in inputs if m in streams}
            if streams:
                yield Recording(
                    streams,
                    target,
                    subject,
                    trial=trial,
                    name=path.relative_to(folder).as_posix(),
                )

    def _target(self, action: int, streams: Mapping[str, Stream]) -> int | Stream:
        if not self._posed:
            return action
        joints = streams["skeleton"]
        if self.target == "pose":
            return joints
        return replace(joints, values=np.insert(joints.values, 0, action, axis=1))


def _numbers(path: Path) -> tuple[int, int, int]:
    """Returns action, subject and trial from the name."""
    match = re.fullmatch(r"a(\d+)_s(\d+)_t(\d+)_inertial\.mat", path.name)
    if not match or not 1 <= int(match[1]) <= len(LABELS):
        raise CommunisError(
            f"{path}: expected aX_sY_tZ_inertial.mat with an action X from 1 to {len(LABELS)}"
        )
    return int(match[1]), int(match[2]), int(match[3])


def _beside(path: Path, kind: str) -> Path:
    """Returns the path of the skeleton or depth file of an inertial file."""
    return path.parents[1] / kind / path.name.replace("inertial", kind.lower())


def _skeleton(path: Path, seconds: float) -> Stream:
    """Returns xyz of all joints, spread over the length of the inertial recording."""
    values = shaped(path, matlab(path, "d_skel")["d_skel"], JOINTS, 3, None)
    frames = values.reshape(3 * JOINTS, -1).T
    if len(frames) < 2:
        raise CommunisError(f"{path}: a single frame, expected at least two; get the file again")
    times = np.arange(len(frames)) * seconds / len(frames)
    return on_grid(times, frames, FRAME_RATE, longest_gap=np.inf)


def _depth(path: Path, seconds: float, pixels: tuple[int, int]) -> Stream:
    """Returns reduced images in millimetres: the mean over the pixels of a block that show the
    body, 0 for a block without such pixels, NaN for an empty frame."""
    values = shaped(path, matlab(path, "d_depth")["d_depth"], HEIGHT, WIDTH, None)
    rows, columns = pixels
    # MATLAB stores columns first, so the transposed array is contiguous.
    blocks = values.T.reshape(-1, columns, WIDTH // columns, rows, HEIGHT // rows)
    total = blocks.sum((2, 4), dtype=np.uint64)
    body = (blocks > 0).sum((2, 4))
    frames: Array = np.divide(total, np.maximum(body, 1)).astype(np.float32).transpose(0, 2, 1)
    frames[~body.any((1, 2))] = np.nan
    grid = np.arange(max(1, int(seconds * FRAME_RATE))) / FRAME_RATE
    nearest = (grid * len(frames) / seconds + 1e-6).astype(int)
    return Stream(frames[nearest], FRAME_RATE, kind="image")
