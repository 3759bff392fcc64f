"""RELI11D: 10 people, 5 sports: LiDAR points, RGB and event-camera features, and SMPL poses.

RELI11D (Yan et al., CVPR 2024). The reader takes the pickles that the owners' training code reads:
a dict of arrays whose first two axes are segments and the 16 frames of a segment.

Checked against that code (github.com/yanmn/RELI11DandLIER), not against the files, which only the
owners distribute:
    point_clouds_2D         (segments, 16, 512, 3)   the person's LiDAR points
    img_feature_ori         (segments, 16, 2048)     features of the RGB frames
    event_feature           (segments, 16, 2048)     features of the event stream
    joint3d_with_trans_2D   (segments, 16, 24, 3)    SMPL joints in metres
    trans_2D                (segments, 16, 3)        the body's translation in metres
Assumed, to be checked by the first user who has the files:
    - the pickles hold NumPy arrays and plain Python objects only;
    - there are 20 frames per second (`fps`), as in CIMI4D by the same owners;
    - points and joints have the same frame of reference, because their names have the same ending.
Not known, and therefore not assumed: whether segments follow each other without a gap (each is a
recording) and which person is in a segment (the number of the file is used as the subject). Raw
images, events and IMU measurements are not in these files and not read; other formats are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.tasks import Localisation, Pose, Several, Single
from communis.data.recordings.about import About
from communis.data.recordings.apart import pickles
from communis.data.recordings.columns import chosen
from communis.data.recordings.files import matching, reading, shaped
from communis.data.recordings.recording import Dataset, Kind, Recording, Stream
from communis.data.recordings.source import Recorded
from communis.data.recordings.splits import SplitKind

ABOUT = About(
    licence="CC BY-NC-SA 3.0",
    citation="Yan et al. 2024, RELI11D, CVPR, pages 2250-2262, arXiv:2403.19501",
    address="http://www.lidarhumanmotion.net/reli11d/",
    files="**/*.pkl",
    how="Get the pickles of the training and test parts as the project page says and put them into "
    "one folder; subfolders are searched.",
)
FRAMES = 16  # in a segment
SENSORS: dict[Modality, tuple[str, tuple[int, ...], Kind, str]] = {  # key, frame shape, kind, unit
    "lidar": ("point_clouds_2D", (512, 3), "points", "m"),
    "rgb": ("img_feature_ori", (2048,), "series", "a.u."),
    "event": ("event_feature", (2048,), "series", "a.u."),
}
TARGETS: dict[str, tuple[str, tuple[int, ...], Single]] = {
    "pose": ("joint3d_with_trans_2D", (24, 3), Pose(24)),
    "location": ("trans_2D", (3,), Localisation(3)),
}


@dataclass(frozen=True)
class Reli11d(Recorded):
    """Settings of `[data] name = "reli11d"`."""

    window: float = 0.8  # length of a window in seconds; 0.8: a complete segment
    # unit that is never in training and test at once; subject: files, as they do not name people
    split: SplitKind = "subject"
    # pose: 24 joints; location: the translation of the body; all: both at once
    target: Literal["pose", "location", "all"] = "pose"
    modalities: tuple[str, ...] = ("lidar", "rgb", "event")  # modalities to read: of these three
    fps: float = 20.0  # frames per second, above 0, which the files do not state

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen("modalities", self.modalities, SENSORS)
        if not self.modalities:
            raise CommunisError(f"modalities: none; there are {', '.join(SENSORS)}")
        if self.fps <= 0:
            raise CommunisError(f"fps must be positive, got {self.fps}")

    def read(self, folder: Path) -> Dataset:
        units = {m: SENSORS[m][3] for m in self.modalities}
        names = self._target_names()
        tasks = tuple(TARGETS[name][2] for name in names)
        task = Several(names, tasks) if self.target == "all" else tasks[0]
        return Dataset(self._recordings(folder), task, units=units)

    def _target_names(self) -> tuple[str, ...]:
        return tuple(TARGETS) if self.target == "all" else (self.target,)

    def _recordings(self, folder: Path) -> Iterator[Recording]:
        for number, path in enumerate(matching(folder, ABOUT.files), start=1):
            arrays = _unpickled(path)
            target = self._target(path, arrays)
            inputs = {}
            for m in self.modalities:
                key, shape, _, _ = SENSORS[m]
                inputs[m] = _field(path, arrays, key, len(target), shape)
            for segment in range(len(target)):
                streams = {}
                for m, values in inputs.items():
                    kind = SENSORS[m][2]
                    streams[m] = Stream(values[segment], self.fps, kind=kind)
                yield Recording(
                    streams,
                    Stream(target[segment], self.fps),
                    subject=number,
                    trial=segment,
                    name=f"{path.relative_to(folder).as_posix()}#{segment}",
                )

    def _target(self, path: Path, arrays: Mapping[str, Any]) -> Array:
        """Returns (segments, FRAMES, columns): the columns of all targets."""
        segments: int | None = None
        columns = []
        for name in self._target_names():
            key, shape, _ = TARGETS[name]
            values = _field(path, arrays, key, segments, shape)
            segments = len(values)
            columns.append(values.reshape(segments, FRAMES, -1))
        return np.concatenate(columns, 2)


def _field(
    path: Path, arrays: Mapping[str, Any], key: str, segments: int | None, shape: tuple[int, ...]
) -> Array:
    """Returns one array of the file as float32, after checking its shape."""
    if key not in arrays:
        known = ", ".join(str(k) for k in arrays)
        raise CommunisError(f"{path}: no array {key}; there are {known or 'none'}")
    values = arrays[key]
    if not isinstance(values, np.ndarray) or not np.issubdtype(values.dtype, np.number):
        raise CommunisError(
            f"{path}: {key} is a {type(values).__name__}, expected an array of numbers"
        )
    try:
        return shaped(path, values, segments, FRAMES, *shape).astype(np.float32)
    except CommunisError as error:
        raise CommunisError(f"{error} for {key}") from None


def _unpickled(path: Path) -> Mapping[str, Any]:
    """Returns the arrays of a pickle, which a separate process reads."""
    with reading(path, "pickle of arrays"):
        content = pickles.read(path.absolute())
    if not isinstance(content, dict):
        raise CommunisError(f"{path}: holds a {type(content).__name__}, expected a dict of arrays")
    return content
