"""UTD-MHAD: inertial values, joints and depth in their places and times, and bad files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.core.tasks import Classification, Pose, Several
from communis.data.recordings.cut import Cut, pieces
from communis.data.recordings.recording import Stream
from communis.data.sources.utd_mhad import LABELS, UtdMhad

from .made_utd_mhad import inertial, skeleton, write


def test_inertial_values_and_joints_land_in_their_places(tmp_path: Path) -> None:
    write(tmp_path, "Inertial", inertial(), action=27, trial=4)
    write(tmp_path, "Skeleton", skeleton(), action=27, trial=4)
    found = UtdMhad(folder=str(tmp_path)).open()
    [recording] = found.recordings
    assert dict(found.units) == {"acc": "g", "gyro": "deg/s", "skeleton": "m", "depth": "mm"}
    assert set(recording.streams) == {"acc", "gyro", "skeleton"}  # no depth file: not there
    for columns, modality in ((slice(0, 3), "acc"), (slice(3, 6), "gyro")):
        stream = recording.streams[modality]
        assert stream.rate == 50
        assert stream.values.dtype == np.float32
        np.testing.assert_allclose(stream.values, inertial()[:, columns], rtol=1e-6)
    joints = recording.streams["skeleton"]
    assert joints.rate == 20  # 60 frames in 3 s: the grid of 20 Hz is that of the frames
    expected = [j + x / 10 + 0.017 for j in range(20) for x in range(3)]
    np.testing.assert_allclose(joints.values[17], expected, rtol=1e-5)
    assert recording.target == LABELS.index("squat")
    assert (recording.subject, recording.trial) == (3, 4)
    assert recording.name == "UTD-MHAD/Inertial/a27_s3_t4_inertial.mat"
    assert found.task.classes == 27


def test_frames_spread_over_the_length_of_the_inertial_recording(tmp_path: Path) -> None:
    write(tmp_path, "Inertial", inertial(200))  # 4 s
    write(tmp_path, "Skeleton", skeleton(40))  # so 10 frames per second
    [recording] = UtdMhad(folder=str(tmp_path)).open().recordings
    joints = recording.streams["skeleton"]
    np.testing.assert_allclose(joints.values[:, 0], np.arange(79) / 2000, atol=1e-6)


def test_pose_is_the_target(tmp_path: Path) -> None:
    write(tmp_path, "Inertial", inertial())
    path = write(tmp_path, "Skeleton", skeleton())
    source = UtdMhad(folder=str(tmp_path), target="pose")
    found = source.open()
    [recording] = found.recordings
    assert found.task == Pose(20, 3)
    assert found.labels == ()
    assert set(recording.streams) == {"acc", "gyro"}
    assert isinstance(recording.target, Stream)
    assert recording.target.values.shape == (60, 60)
    assert recording.target.rate == 20
    path.unlink()
    with pytest.raises(CommunisError, match=r"its pose is missing: there is no .*a1_s3_t1_skel"):
        list(source.open().recordings)


def test_action_and_pose_at_once(tmp_path: Path) -> None:
    write(tmp_path, "Inertial", inertial(), action=27)
    path = write(tmp_path, "Skeleton", skeleton(), action=27)
    source = UtdMhad(folder=str(tmp_path), target="all")
    found = source.open()
    assert found.task == Several(("action", "pose"), (Classification(27), Pose(20, 3)))
    assert (found.labels, set(found.units)) == (LABELS, {"acc", "gyro", "depth"})
    ((recording, piece),) = pieces(found, Cut(2.0, 1.0))
    assert set(recording.streams) == {"acc", "gyro"}  # the skeleton is what is looked for
    pose = [[j + x / 10 + f / 1000 for j in range(20) for x in range(3)] for f in (20, 40)]
    np.testing.assert_allclose(piece.target[:, 0], 26)
    np.testing.assert_allclose(piece.target[:, 1:], pose, rtol=1e-5)
    path.unlink()
    with pytest.raises(CommunisError, match=r"its pose is missing: there is no .*a27_s3_t1_skel"):
        list(source.open().recordings)


def test_depth_is_the_mean_over_the_body_in_a_block(tmp_path: Path) -> None:
    write(tmp_path, "Inertial", inertial(50))  # 1 s
    depth = np.zeros((240, 320, 10), np.uint16)
    depth[10:20, 310:320] = 2000 + np.arange(10)  # row 1, column 31 of the coarse image: full
    depth[10, 0] = 3000  # row 1, column 0: two pixels of a hundred
    depth[19, 9] = 3002
    depth[:, :, 9] = 0
    write(tmp_path, "Depth", depth)
    [recording] = UtdMhad(folder=str(tmp_path), inputs=("depth",)).open().recordings
    [stream] = recording.streams.values()
    assert (stream.kind, stream.rate, stream.values.shape) == ("image", 20, (20, 24, 32))
    # ten frames in a second, so that each is there twice
    np.testing.assert_array_equal(stream.values[:18, 1, 31], np.repeat(2000 + np.arange(9), 2))
    np.testing.assert_array_equal(stream.values[:18, 1, 0], 3001)
    assert (stream.values[:18] > 0).sum() == 2 * 18  # background is 0
    assert np.isnan(stream.values[18:]).all()  # an empty frame saw nothing
    coarse = UtdMhad(folder=str(tmp_path), inputs=("depth",), pixels=(1, 2))
    [recording] = coarse.open().recordings
    assert recording.streams["depth"].values.shape == (20, 1, 2)
    assert recording.streams["depth"].values[0].tolist() == [[3001, 2000]]


def test_settings_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match=r"inputs: no 'rgb'; there are acc"):
        UtdMhad(inputs=("rgb",))
    for target in ("pose", "all"):
        with pytest.raises(CommunisError, match="skeleton cannot be an input"):
            UtdMhad(inputs=("skeleton",), target=target)
    with pytest.raises(CommunisError, match=r"pixels must divide .* got \(25, 32\)"):
        UtdMhad(pixels=(25, 32))


def test_files_that_are_not_right_are_named(tmp_path: Path) -> None:
    def reading() -> None:
        list(UtdMhad(folder=str(tmp_path)).open().recordings)

    write(tmp_path, "Inertial", inertial()[:, :5])
    with pytest.raises(CommunisError, match=r"inertial\.mat: values of shape \(150, 5\)"):
        reading()
    write(tmp_path, "Inertial", inertial())
    path = write(tmp_path, "Skeleton", skeleton()[:19])
    with pytest.raises(CommunisError, match=r"skeleton\.mat: values of shape \(19, 3, 60\)"):
        reading()
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(CommunisError, match=r"skeleton\.mat: not a readable MATLAB file"):
        reading()
    path.unlink()
    write(tmp_path, "Depth", np.zeros((240, 321, 4), np.uint16))
    with pytest.raises(CommunisError, match=r"depth\.mat: values of shape \(240, 321, 4\)"):
        reading()


def test_unknown_actions_are_refused(tmp_path: Path) -> None:
    write(tmp_path, "Inertial", inertial(), action=28)
    with pytest.raises(CommunisError, match="an action X from 1 to 27"):
        UtdMhad(folder=str(tmp_path)).open()


@pytest.mark.slow
def test_the_real_files(real: Callable[[str], Path]) -> None:
    found = list(UtdMhad(folder=str(real("utd_mhad"))).open().recordings)
    assert len(found) == 27 * 8 * 4 - 3
    assert sum("depth" in r.streams for r in found) == 32
    agree = []
    for recording in found:
        acc, joints = recording.streams["acc"], recording.streams["skeleton"]
        assert np.median(np.linalg.norm(acc.values, axis=1)) == pytest.approx(1.2, abs=0.3)
        assert -0.11 < joints.end - acc.end < 0.06
        if isinstance(recording.target, int) and recording.target < 21:
            # The hand that wears the sensor moves when the sensor turns: the clocks agree.
            hand = np.linalg.norm(np.diff(joints.values[:, 33:36], axis=0), axis=1)
            turn = np.linalg.norm(recording.streams["gyro"].values, axis=1)
            times = (np.arange(len(hand)) + 0.5) / joints.rate
            agree.append(np.corrcoef(hand, np.interp(times, np.arange(len(turn)) / 50, turn))[0, 1])
    assert np.median(agree) > 0.65
    depth = next(r.streams["depth"].values for r in found if "depth" in r.streams)
    body = depth[depth > 0]
    assert 2000 < body.min() < body.max() < 4000
