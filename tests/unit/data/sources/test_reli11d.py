from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.core.tasks import Localisation, Pose, Several
from communis.data.recordings.cut import Cut, pieces
from communis.data.recordings.recording import Dataset, Recording, Stream
from communis.data.sources.reli11d import Reli11d
from tests.unit.data.sources import made_reli11d as made


def dataset(root: Path, **settings: object) -> Dataset:
    return Reli11d(folder=str(root), **settings).open()  # type: ignore[arg-type]


def opened(root: Path, **settings: object) -> list[Recording]:
    return list(dataset(root, **settings).recordings)


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_every_array_lands_in_its_modality(tmp_path: Path, protocol: int) -> None:
    made.write(tmp_path / "train.pkl", made.part(3), protocol)
    recordings = opened(tmp_path)
    assert [(r.subject, r.trial, r.name) for r in recordings] == [
        (1, 0, "train.pkl#0"),
        (1, 1, "train.pkl#1"),
        (1, 2, "train.pkl#2"),
    ]
    for modality, key, kind in (
        ("lidar", "point_clouds_2D", "points"),
        ("rgb", "img_feature_ori", "series"),
        ("event", "event_feature", "series"),
    ):
        for s, recording in enumerate(recordings):
            stream = recording.streams[modality]
            assert (stream.rate, stream.kind) == (20.0, kind)
            assert stream.values.dtype == np.float32
            expected = made.values(key, 3)[s].astype(np.float32)
            np.testing.assert_array_equal(stream.values, expected)


def test_targets(tmp_path: Path) -> None:
    made.write(tmp_path / "train.pkl", made.part(2))
    pose, place = dataset(tmp_path), dataset(tmp_path, target="location")
    assert (pose.task, place.task) == (Pose(24), Localisation(3))
    for found, key in ((pose, "joint3d_with_trans_2D"), (place, "trans_2D")):
        for s, recording in enumerate(found.recordings):
            assert isinstance(recording.target, Stream)
            expected = made.values(key, 2)[s].reshape(16, -1).astype(np.float32)
            np.testing.assert_array_equal(recording.target.values, expected)


def test_pose_and_location_at_once(tmp_path: Path) -> None:
    path = made.write(tmp_path / "train.pkl", made.part(2))
    found = dataset(tmp_path, target="all", modalities=("lidar",))
    assert found.task == Several(("pose", "location"), (Pose(24), Localisation(3)))
    pose, place = (made.values(key, 2) for key in ("joint3d_with_trans_2D", "trans_2D"))
    for s, (_, piece) in enumerate(pieces(found, Cut(0.8))):
        expected = [*pose[s, 8].ravel(), *place[s, 8]]  # the frame in the middle
        np.testing.assert_array_equal(piece.target, np.float32([expected]))
    made.write(path, {**made.part(2), "trans_2D": made.values("trans_2D", 3)})
    with pytest.raises(CommunisError, match=r"\(3, 16, 3\), expected \(2, 16, 3\) for trans_2D"):
        opened(tmp_path, target="all")


def test_a_segment_is_a_window_and_files_are_subjects(tmp_path: Path) -> None:
    made.write(tmp_path / "test/b.pkl", made.part(2))
    made.write(tmp_path / "train/a.pkl", made.part(1))
    found = dataset(tmp_path, modalities=("lidar",))
    cut = list(pieces(found, Cut(0.8)))
    assert [r.subject for r, _ in cut] == [1, 1, 2]
    assert [len(piece) for _, piece in cut] == [1, 1, 1]
    assert cut[0][1].inputs["lidar"].shape == (1, 3, 16 * 512)
    assert cut[0][1].target.shape == (1, 72)
    assert found.units == {"lidar": "m"}


def test_another_frame_rate(tmp_path: Path) -> None:
    made.write(tmp_path / "train.pkl", made.part(1))
    (recording,) = opened(tmp_path, fps=10.0)
    assert recording.seconds == 1.6


class Forged:
    def __reduce__(self) -> tuple[object, ...]:
        return eval, ("1 / 0",)


def without(key: str) -> dict[str, object]:
    return {k: v for k, v in made.part(2).items() if k != key}


BAD: dict[str, tuple[object, str]] = {
    "code": ({**made.part(1), "img": Forged()}, "it asks for builtins.eval, which is not an array"),
    "list": ([1, 2], "holds a list, expected a dict of arrays"),
    "key": (without("event_feature"), "no array event_feature; there are img, point_clouds_2D"),
    "text": ({**made.part(1), "event_feature": "a"}, "event_feature is a str, expected an array"),
    "shape": (
        {**made.part(1), "event_feature": np.zeros((1, 16, 1024))},
        "values of shape (1, 16, 1024), expected (1, 16, 2048) for event_feature",
    ),
    "segments": (
        {**made.part(2), "event_feature": np.zeros((1, 16, 2048))},
        "values of shape (1, 16, 2048), expected (2, 16, 2048) for event_feature",
    ),
    "none": (
        {**made.part(2), "joint3d_with_trans_2D": np.zeros((0, 16, 24, 3))},
        "values of shape (0, 16, 24, 3), expected (any, 16, 24, 3) for joint3d_with_trans_2D",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_anything_else_is_refused(tmp_path: Path, what: str) -> None:
    found, text = BAD[what]
    path = made.write(tmp_path / "train.pkl", found)
    with pytest.raises(CommunisError) as error:
        opened(tmp_path)
    assert str(error.value).startswith(f"{path}: ")
    assert text in str(error.value)


@pytest.mark.parametrize("keep", [0, 7, 5000, -3])
def test_files_cut_short_are_named(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "train.pkl"
    path.write_bytes(pickle.dumps(made.part(1))[:keep])
    with pytest.raises(CommunisError, match=r"train.pkl: not a readable pickle of arrays"):
        opened(tmp_path)


def test_settings_are_checked() -> None:
    source = Reli11d()
    with pytest.raises(CommunisError, match="modalities: no 'imu'; there are lidar, rgb, event"):
        replace(source, modalities=("imu",))
    with pytest.raises(CommunisError, match=r"fps must be positive, got 0\.0"):
        replace(source, fps=0.0)
