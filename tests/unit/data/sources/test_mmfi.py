from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from communis.core.errors import CommunisError
from communis.core.tasks import Classification, Localisation, Pose, Several
from communis.data.recordings.cut import Cut, pieces
from communis.data.recordings.recording import Dataset, Recording, Stream
from communis.data.sources.mmfi import LABELS, SENSORS, Mmfi
from tests.unit.data.sources import made_mmfi as made

ALL = tuple(SENSORS)


def dataset(root: Path, **settings: object) -> Dataset:
    return Mmfi(folder=str(root), **settings).open()  # type: ignore[arg-type]


def opened(root: Path, **settings: object) -> list[Recording]:
    return list(dataset(root, **settings).recordings)


@pytest.fixture
def whole(tmp_path: Path) -> Recording:
    made.recording(tmp_path)
    (recording,) = opened(tmp_path, modalities=ALL, points=16, depth_step=1)
    return recording


def test_csi_packets_follow_each_other_at_100_hz(whole: Recording) -> None:
    """The last axis of a frame is time: packet p of frame f is step 10 f + p."""
    csi = whole.streams["csi"]
    assert (csi.rate, csi.kind, csi.values.shape) == (100.0, "csi", (60, 3, 114))
    antenna, carrier = np.ogrid[:3, :114]
    for step in (0, 9, 10, 37, 59):
        expected = 1000 * antenna + carrier + step / 100
        np.testing.assert_allclose(csi.values[step], expected, rtol=1e-6)
    np.testing.assert_array_equal(whole.streams["csi_phase"].values, -csi.values)


def test_points_are_float64_with_three_or_five_features(whole: Recording) -> None:
    radar, lidar = whole.streams["mmwave"], whole.streams["lidar"]
    assert (radar.rate, radar.kind, radar.values.shape) == (10.0, "points", (6, 16, 5))
    for f in range(made.FRAMES):  # frame f has f points
        np.testing.assert_allclose(radar.values[f, :f], made.cloud(f, f, 5), rtol=1e-6)
        assert np.isnan(radar.values[f, f:]).all()
    assert lidar.values.shape == (6, 16, 3)
    kept = made.cloud(4, 24, 3)[[0, 1, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19, 21, 22]]
    np.testing.assert_allclose(lidar.values[4], kept, rtol=1e-6)


def test_depth_images_in_millimetres_with_holes(whole: Recording) -> None:
    depth = whole.streams["depth"]
    assert (depth.rate, depth.kind) == (10.0, "image")
    for f in range(made.FRAMES):
        expected = np.where(made.depth(f) == 0, np.nan, made.depth(f))
        np.testing.assert_array_equal(depth.values[f], expected)
        assert np.isnan(depth.values[f]).sum() == 1


def test_every_eighth_pixel_of_depth_by_default(tmp_path: Path) -> None:
    made.recording(tmp_path)
    (recording,) = opened(tmp_path, modalities=("depth",))
    values = recording.streams["depth"].values
    assert values.shape == (6, 3, 4)
    assert np.isnan(values[:, 1, 2]).all()  # the hole at (8, 16)
    assert values[5, 2, 3] == made.depth(5)[16, 24]


@pytest.mark.parametrize("kind", range(5))
def test_every_filter_of_png(tmp_path: Path, kind: int) -> None:
    folder = made.recording(tmp_path, frames=1)
    (folder / "depth/frame001.png").write_bytes(made.png(made.depth(9), (kind,)))
    (recording,) = opened(tmp_path, modalities=("depth",), depth_step=1)
    expected = np.where(made.depth(9) == 0, np.nan, made.depth(9))
    np.testing.assert_array_equal(recording.streams["depth"].values[0], expected)


def test_png_of_another_writer(tmp_path: Path) -> None:
    folder = made.recording(tmp_path, frames=1)
    Image.fromarray(made.depth(7)).save(folder / "depth/frame001.png")
    (recording,) = opened(tmp_path, modalities=("depth",), depth_step=1)
    found = np.nan_to_num(recording.streams["depth"].values[0])
    np.testing.assert_array_equal(found, made.depth(7))


def test_cameras_are_keypoints(whole: Recording) -> None:
    for k, sensor in enumerate(("rgb", "infra1", "infra2")):
        stream = whole.streams[sensor]
        assert (stream.rate, stream.kind, stream.values.shape) == (10.0, "series", (6, 34))
        for f in range(made.FRAMES):
            expected = made.keypoints(f).reshape(34) + 1000 * k
            np.testing.assert_allclose(stream.values[f], expected, rtol=1e-6)


def test_amplitudes_of_nothing_are_nan(tmp_path: Path) -> None:
    folder = made.recording(tmp_path)
    holes = made.csi(2)
    holes[1, 5, 3], holes[0, 0, 0], holes[2, 9, 9] = -np.inf, np.nan, np.inf
    savemat(folder / "wifi-csi/frame003.mat", {"CSIamp": holes, "CSIphase": holes})
    (recording,) = opened(tmp_path, modalities=("csi",))
    values = recording.streams["csi"].values
    assert sorted(map(tuple, np.argwhere(np.isnan(values)))) == [(20, 0, 0), (23, 1, 5), (29, 2, 9)]
    assert np.isfinite(values).sum() == values.size - 3


@pytest.mark.parametrize("modality", ALL)
def test_a_frame_of_no_bytes_was_not_sensed(tmp_path: Path, modality: str) -> None:
    folder = made.recording(tmp_path)
    (empty,) = (folder / SENSORS[modality][0]).glob("frame004.*")
    empty.write_bytes(b"")
    (recording,) = opened(tmp_path, modalities=(modality,), depth_step=1)
    frames = recording.streams[modality].values.reshape(made.FRAMES, -1)
    assert np.isnan(frames[3]).all()
    assert np.isfinite(frames[[2, 4, 5]]).any(1).all()


def test_action_is_the_class_and_numbers_come_from_the_folders(tmp_path: Path) -> None:
    made.recording(tmp_path, "E01/S10/A27")
    made.recording(tmp_path, "E04/S31/A02")
    found = dataset(tmp_path, modalities=("mmwave",))
    assert found.task == Classification(27)
    assert found.labels == LABELS
    assert found.units == {"mmwave": "m"}
    seen = [(r.name, r.scene, r.subject, r.target) for r in found.recordings]
    assert seen == [("E01/S10/A27", 1, 10, 26), ("E04/S31/A02", 4, 31, 1)]
    assert (LABELS[26], LABELS[1]) == ("bow", "chest expansion, horizontal")


def test_protocols_renumber_their_actions(tmp_path: Path) -> None:
    for action in ("A01", "A02", "A26", "A27"):
        made.recording(tmp_path, f"E01/S01/{action}", frames=1)
    daily = dataset(tmp_path, protocol=1, modalities=("rgb",))
    assert [(r.name[-3:], r.target) for r in daily.recordings] == [("A02", 0), ("A27", 13)]
    assert (len(daily.labels), daily.labels[13]) == (14, "bow")
    rehabilitation = dataset(tmp_path, protocol=2, modalities=("rgb",))
    assert [(r.name[-3:], r.target) for r in rehabilitation.recordings] == [("A01", 0), ("A26", 12)]
    assert rehabilitation.task == Classification(13)


def test_rooms_and_subjects_can_be_chosen(tmp_path: Path) -> None:
    for name in ("E01/S01/A01", "E01/S02/A01", "E02/S11/A01"):
        made.recording(tmp_path, name, frames=1)
    rooms = opened(tmp_path, environments=(2,), modalities=("rgb",))
    people = opened(tmp_path, subjects=(2, 11), modalities=("rgb",))
    assert [r.subject for r in rooms] == [11]
    assert [r.subject for r in people] == [2, 11]
    with pytest.raises(
        CommunisError, match="no recording of the requested environments, subjects and action"
    ):
        opened(tmp_path, environments=(2,), subjects=(1,), modalities=("rgb",))


def test_pose_and_location(tmp_path: Path) -> None:
    made.recording(tmp_path)
    pose = dataset(tmp_path, target="pose")
    assert pose.task == Pose(17)
    (recording,) = pose.recordings
    assert isinstance(recording.target, Stream)
    assert recording.target.rate == 10.0
    expected = made.joints(made.FRAMES).reshape(6, 51)
    np.testing.assert_allclose(recording.target.values, expected, rtol=1e-6)
    place = dataset(tmp_path, target="location")
    assert place.task == Localisation(3)
    (recording,) = place.recordings
    assert isinstance(recording.target, Stream)
    np.testing.assert_allclose(recording.target.values, expected[:, :3], rtol=1e-6)


def test_action_pose_and_location_at_once(tmp_path: Path) -> None:
    made.recording(tmp_path, "E01/S01/A27")
    found = dataset(tmp_path, target="all", protocol=1, modalities=("rgb",))
    tasks = (Classification(14), Pose(17), Localisation(3))
    assert found.task == Several(("action", "pose", "location"), tasks)
    assert (len(found.labels), found.labels[13]) == (14, "bow")
    ((_, piece),) = pieces(found, Cut(0.3))
    middle = made.joints(made.FRAMES)[[1, 4]]
    np.testing.assert_array_equal(piece.target[:, 0], 13)
    np.testing.assert_allclose(piece.target[:, 1:52], middle.reshape(2, 51), rtol=1e-6)
    np.testing.assert_allclose(piece.target[:, 52:], middle[:, 0], rtol=1e-6)


def test_windows_hold_frames_and_packets_of_the_same_time(tmp_path: Path) -> None:
    made.recording(tmp_path)
    ((_, piece),) = pieces(dataset(tmp_path, target="pose", points=4), Cut(0.3))
    assert piece.inputs["csi"].shape == (2, 3, 114, 30)
    assert piece.inputs["lidar"].shape == (2, 3, 12)
    assert piece.inputs["csi"][1, 0, 0, 0] == np.float32(0.3)  # packet 30
    np.testing.assert_allclose(piece.target[:, 0], [1, 4])  # the frames in the middle


def test_a_folder_of_one_room_is_enough(tmp_path: Path) -> None:
    made.recording(tmp_path, "E03/S21/A05")
    (recording,) = opened(tmp_path / "E03", modalities=("rgb",))
    assert (recording.name, recording.scene, recording.subject) == ("S21/A05", 3, 21)


def test_a_room_that_is_not_the_subjects_is_refused(tmp_path: Path) -> None:
    made.recording(tmp_path, "E02/S01/A01", frames=1)
    with pytest.raises(CommunisError, match="E02/S01/A01 is not a recording of MM-Fi"):
        opened(tmp_path)


def test_frames_must_be_complete(tmp_path: Path) -> None:
    folder = made.recording(tmp_path)
    (folder / "lidar/frame003.bin").unlink()
    with pytest.raises(
        CommunisError, match=r"5 files frame\*.bin, expected 6 .*frame003.bin is mis"
    ):
        opened(tmp_path)
    (folder / "lidar/frame007.bin").write_bytes(b"")
    with pytest.raises(CommunisError, match=r"frame003.bin is missing"):
        opened(tmp_path)
    np.save(folder / "ground_truth.npy", made.joints(5))
    with pytest.raises(CommunisError, match=r"rgb: 6 files frame\*.npy, expected 5 as in ground"):
        opened(tmp_path, modalities=("rgb",))


BAD = {
    "wifi-csi/frame002.mat": ("csi", b"MATLAB 5.0", "not a readable MATLAB file"),
    "mmwave/frame002.bin": ("mmwave", b"\x00" * 44, "44 bytes, expected a multiple of 40"),
    "lidar/frame002.bin": ("lidar", b"\x00" * 40, "40 bytes, expected a multiple of 24"),
    "depth/frame002.png": ("depth", made.png(made.depth(1))[:-300], "not a readable PNG image"),
    "depth/frame003.png": ("depth", b"GIF89a", "not a readable PNG image"),
    "depth/frame004.png": ("depth", made.png(made.depth(1), (5,)), "not a readable PNG image"),
    "depth/frame005.png": (
        "depth",
        made.png(made.depth(1)[1:]),
        "shape (23, 32), expected (24, 32)",
    ),
    "rgb/frame002.npy": ("rgb", b"\x93NUMPY", "not a readable NumPy file"),
    "ground_truth.npy": ("rgb", b"", "not a readable NumPy file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named(tmp_path: Path, name: str) -> None:
    folder = made.recording(tmp_path)
    modality, data, text = BAD[name]
    (folder / name).write_bytes(data)
    with pytest.raises(CommunisError) as error:
        opened(tmp_path, modalities=(modality,), depth_step=1)
    assert str(error.value).startswith(f"{folder / name}: ")
    assert text in str(error.value)


def test_wrong_shapes_and_keys_are_named(tmp_path: Path) -> None:
    folder = made.recording(tmp_path)
    np.save(folder / "rgb/frame002.npy", np.zeros((17, 3)))
    with pytest.raises(CommunisError, match=r"rgb/frame002.npy: values of shape \(17, 3\)"):
        opened(tmp_path, modalities=("rgb",))
    savemat(folder / "wifi-csi/frame002.mat", {"CSIamp": np.zeros((3, 114))})
    with pytest.raises(CommunisError, match=r"shape \(3, 114\), expected \(3, 114, 10\)"):
        opened(tmp_path, modalities=("csi",))
    with pytest.raises(CommunisError, match="no variable CSIphase; there are CSIamp"):
        opened(tmp_path, modalities=("csi_phase",))
    np.save(folder / "ground_truth.npy", np.array(["a"]))
    with pytest.raises(
        CommunisError, match=r"ground_truth.npy: values of type <U1, expected real numbers"
    ):
        opened(tmp_path)


def test_settings_are_checked() -> None:
    source = Mmfi()
    with pytest.raises(
        CommunisError, match="modalities: no 'radar'; there are csi, csi_phase, mmwave"
    ):
        replace(source, modalities=("radar",))
    with pytest.raises(CommunisError, match="modalities: none"):
        replace(source, modalities=())
    with pytest.raises(CommunisError, match="protocol must be 1, 2 or 3, got 4"):
        replace(source, protocol=4)
    with pytest.raises(CommunisError, match="points and depth_step must be at least 1"):
        replace(source, points=0)
