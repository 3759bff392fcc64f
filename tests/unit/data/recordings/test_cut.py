"""Recordings are cut into windows: what lands where, what is left out, what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from communis import CommunisError
from communis.data.recordings.cut import Cut, pieces
from communis.data.recordings.recording import Recording, Stream, on_grid
from tests.unit.data.recordings.made import cut, dataset, ramp, recording


def test_windows_follow_each_other_without_overlap_or_gap(tmp_path: Path) -> None:
    data = cut(tmp_path, recording(57))
    assert data.inputs["a"].shape == (5, 2, 10)
    assert data.inputs["a"].dtype == np.float32
    assert data.inputs["a"][:, 0].ravel().tolist() == list(range(50))  # the rest of 7 is left out
    assert data.inputs["a"][:, 1].ravel().tolist() == [-v for v in range(50)]
    assert data.start.tolist() == [0, 1, 2, 3, 4]


def test_a_stride_makes_windows_overlap(tmp_path: Path) -> None:
    data = cut(tmp_path, recording(30), stride=0.5)
    assert data.inputs["a"][:, 0, 0].tolist() == [0, 5, 10, 15, 20]
    assert data.start.tolist() == [0, 0.5, 1, 1.5, 2]


def test_where_a_window_comes_from_is_kept(tmp_path: Path) -> None:
    data = cut(
        tmp_path,
        recording(35, 1, 8, scene=2, session=3, trial=4),
        recording(9, 1, 9),  # too short for one window: contributes none
        recording(20, 0, 8, scene=5, session=6, trial=7),
    )
    assert data.target.tolist() == [1, 1, 1, 0, 0]
    assert data.owner.tolist() == [8] * 5
    assert data.scene.tolist() == [2, 2, 2, 5, 5]
    assert data.session.tolist() == [3, 3, 3, 6, 6]
    assert data.trial.tolist() == [4, 4, 4, 7, 7]
    assert data.recording.tolist() == [0, 0, 0, 2, 2]
    assert data.start.tolist() == [0, 1, 2, 3.5, 4.5]  # a subject's recordings lie end to end


def test_modalities_at_different_rates_cover_the_same_time(tmp_path: Path) -> None:
    time_a, time_b = np.arange(400) / 40.0, np.arange(100) / 10.0
    streams = {"a": Stream(time_a[:, None], 40.0), "b": Stream(time_b[:, None], 10.0)}
    data = cut(tmp_path, Recording(streams, 0, 0), seconds=2.0)
    assert data.inputs["a"].shape == (5, 1, 80)
    assert data.inputs["b"].shape == (5, 1, 20)
    first = data.inputs["a"][:, 0, 0].tolist()
    assert first == data.inputs["b"][:, 0, 0].tolist() == [0, 2, 4, 6, 8]


def test_modalities_stay_aligned_when_a_window_is_no_whole_number_of_steps(tmp_path: Path) -> None:
    """64 Hz and 100 Hz (a watch and a belt): 2.56 s are 163.84 and 256 steps."""
    streams = {
        m: Stream((np.arange(int(300 * rate)) / rate)[:, None], rate)
        for m, rate in (("a", 64.0), ("b", 100.0))
    }
    data = cut(tmp_path, Recording(streams, 0, 0), seconds=2.56)
    apart = np.abs(data.inputs["a"][:, 0, 0] - data.inputs["b"][:, 0, 0])
    assert len(data) == 117
    assert np.nanmax(apart) <= 1 / 64


def test_a_stream_that_starts_late_or_ends_early_is_missing_there(tmp_path: Path) -> None:
    streams = {"a": ramp(50), "late": ramp(20, start=1.6), "short": ramp(12)}
    data = cut(tmp_path, Recording(streams, 0, 0))
    assert len(data) == 5
    late = data.inputs["late"][:, 0]
    assert np.isnan(late[0]).all()
    assert np.isnan(late[1, :6]).all()
    assert late[1, 6:].tolist() == [0, 1, 2, 3]
    assert late[2].tolist() == list(range(4, 14))
    # Four samples of ten are too few to count as present.
    assert data.present["late"].tolist() == [False, False, True, True, False]
    assert data.present["short"].tolist() == [True, False, False, False, False]
    assert data.present["a"].all()


def test_missing_samples_stay_nan_and_half_of_them_are_enough(tmp_path: Path) -> None:
    stream = ramp(40)
    stream.values[5:10] = np.nan  # half of window 0
    stream.values[14:20] = np.nan  # six of ten in window 1
    stream.values[20:30] = np.nan  # window 2: nothing was sensed at all
    data = cut(tmp_path, Recording({"a": stream, "b": ramp(20)}, 0, 0))
    assert data.present["a"].tolist() == [True, False, True]
    assert data.start.tolist() == [0, 1, 3]  # at 2 no sensor was at work
    assert np.isnan(data.inputs["a"][0, :, 5:]).all()
    assert np.isfinite(data.inputs["a"][0, :, :5]).all()


def test_a_modality_that_recordings_lack_is_absent_there(tmp_path: Path) -> None:
    first = Recording({"a": ramp(20)}, 0, 0)
    second = Recording({"b": ramp(30, begin=100)}, 1, 1)
    data = cut(tmp_path, first, second)
    assert data.present["a"].tolist() == [True] * 2 + [False] * 3
    assert data.present["b"].tolist() == [False] * 2 + [True] * 3
    assert np.isnan(data.inputs["b"][:2]).all()
    assert np.isnan(data.inputs["a"][2:]).all()
    assert data.inputs["b"][2, 0, 0] == 100


def test_the_label_of_a_window_is_that_of_most_of_it(tmp_path: Path) -> None:
    labels = np.array([0] * 14 + [1] * 16 + [-1] * 6 + [2] * 14 + [-1] * 10)
    data = cut(tmp_path, recording(60, Stream(labels, 10.0)))
    #  0-9: 0; 10-19: six of 1 against four of 0; 20-29: 1; 30-39: six unlabelled; 40-49: 2
    assert data.target.tolist() == [0, 1, 1, 2]
    assert data.start.tolist() == [0, 1, 2, 4]


def test_labels_have_their_own_rate_and_beginning(tmp_path: Path) -> None:
    epochs = Stream(np.array([2, 0, 1]), rate=0.5, start=1.0)  # 2 s each, from second 1
    data = cut(tmp_path, recording(80, epochs))
    assert data.start.tolist() == [1, 2, 3, 4, 5, 6]
    assert data.target.tolist() == [2, 2, 0, 0, 1, 1]


def test_values_are_taken_in_the_middle_and_unknown_ones_leave_windows_out(tmp_path: Path) -> None:
    values = np.stack([np.arange(30.0), np.zeros(30)], 1)
    values[15, 1] = np.nan
    found = [piece for _, piece in pieces(dataset(recording(30, Stream(values, 10.0))), Cut(1.0))]
    assert found[0].target.tolist() == [[5, 0], [25, 0]]
    assert found[0].start.tolist() == [0, 2]


def test_every_kind_has_its_layout(tmp_path: Path) -> None:
    csi = np.arange(20 * 2 * 3, dtype=np.float32).reshape(20, 2, 3)
    cloud = np.arange(4 * 5 * 3, dtype=np.float32).reshape(4, 5, 3)
    cloud[:, 3:] = np.nan  # three of five points were found
    frames = np.arange(4 * 6 * 8, dtype=np.float32).reshape(4, 6, 8)
    streams = {
        "csi": Stream(csi, 10.0, kind="csi"),
        "cloud": Stream(cloud, 2.0, kind="points"),
        "depth": Stream(frames, 2.0, kind="image"),
    }
    data = cut(tmp_path, Recording(streams, 0, 0))
    assert data.kinds == {"csi": "csi", "cloud": "points", "depth": "image"}
    assert data.inputs["csi"].shape == (2, 2, 3, 10)
    assert np.array_equal(data.inputs["csi"][1, 1, 2], csi[10:, 1, 2])
    assert data.inputs["depth"].shape == (2, 2, 6, 8)
    assert np.array_equal(data.inputs["depth"][1], frames[2:])
    assert data.inputs["cloud"].shape == (2, 3, 10)
    expected = cloud[2:].reshape(10, 3).T
    assert np.array_equal(data.inputs["cloud"][1], expected, equal_nan=True)
    assert data.present["cloud"].all()


@pytest.mark.parametrize(("count", "seconds", "rate"), [(3, 2.56, 50.0), (10, 0.1, 100.0)])
def test_a_recording_of_whole_windows_gives_all_of_them(
    count: int, seconds: float, rate: float, tmp_path: Path
) -> None:
    whole = Recording({"a": ramp(round(count * seconds * rate), rate)}, 0, 0)
    assert len(cut(tmp_path, whole, seconds=seconds)) == count


@pytest.mark.parametrize("settings", [{"seconds": 0.0}, {"seconds": -1.0}, {"stride": -1.0}])
def test_settings_without_sense_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(CommunisError):
        Cut(**{"seconds": 1.0, **settings})


def test_a_window_without_a_step_names_recording_modality_and_the_least(tmp_path: Path) -> None:
    heart = Recording({"heart": ramp(30, rate=1.0)}, 0, 0, name="S1/heart.csv")
    with pytest.raises(CommunisError, match=r"S1/heart\.csv.*0\.5 s holds no step of heart.*1 s"):
        cut(tmp_path, heart, seconds=0.5)


def test_a_window_longer_than_every_recording_is_refused_with_the_longest(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match=r"window of 20\.0 s; the longest lasts 5\.7 s"):
        cut(tmp_path, recording(57), recording(30), seconds=20.0)


def test_rates_that_differ_between_recordings_are_refused_with_the_mend(tmp_path: Path) -> None:
    other = Recording({"a": ramp(100, rate=20.0)}, 0, 1)
    with pytest.raises(
        CommunisError, match=r"shape \(2, 20\), in other recordings \(2, 10\).*rate"
    ):
        cut(tmp_path, recording(50), other)
    assert cut(tmp_path, recording(50), other, rate=10.0).inputs["a"].shape == (10, 2, 10)


def test_uneven_times_become_a_grid_with_holes() -> None:
    times = np.array([0.0, 0.11, 0.2, 0.29, 1.0, 1.1])
    stream = on_grid(times, times[:, None] * 10, rate=10.0, longest_gap=0.25)
    assert stream.rate == 10.0
    assert stream.values[[0, 1, 2, 3, 10, 11], 0] == pytest.approx([0, 1, 2, 3, 10, 11], abs=0.02)
    assert np.isnan(stream.values[4:10]).all()
    with pytest.raises(CommunisError, match="in ascending order"):
        on_grid(np.array([0.0, 0.2, 0.1]), np.zeros((3, 1)), 10.0, 1.0)


@pytest.mark.parametrize("begin", [0.0, 1.7e9])
def test_the_last_sample_is_kept_whenever_the_clock_began(begin: float) -> None:
    """Seconds since 1970 are rounded to 2.4e-7: the last one may seem to come before its place."""
    for steps in range(500, 600):
        times = begin + np.arange(steps) / 100
        stream = on_grid(times - times[0], np.ones((steps, 1)), rate=100.0, longest_gap=0.05)
        assert len(stream.values) == steps


def test_points_of_a_recording_too_short_for_a_window() -> None:
    cloud = Stream(np.zeros((3, 5, 3)), 2.0, kind="points")
    ((_, piece),) = pieces(dataset(Recording({"cloud": cloud}, 0, 1)), Cut(seconds=4.0))
    assert piece.inputs["cloud"].shape == (0, 3, 8 * 5)
