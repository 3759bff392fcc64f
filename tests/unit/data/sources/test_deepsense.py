"""DeepSense 6G: series, the owner's parts, and what may not be dealt out at will."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from communis.core.errors import CommunisError
from communis.core.tasks import Classification
from communis.data.recordings.recording import Recording, Stream
from communis.data.recordings.splits import SplitKind
from communis.data.sources.deepsense import Deepsense

from .made_deepsense import LENGTH, blocked, powers, write


def read(folder: Path, **settings: object) -> list[Recording]:
    return list(Deepsense(folder=str(folder), **settings).open().recordings)  # type: ignore[arg-type]


def first_frame(recording: Recording) -> int:
    return int(recording.streams["mmwave"].values[0, 0])


@pytest.mark.parametrize("future", [1, 5, 10])
def test_series_see_eight_frames_and_predict_the_next(tmp_path: Path, future: int) -> None:
    write(tmp_path)
    data = Deepsense(folder=str(tmp_path), future=future).open()  # type: ignore[arg-type]
    assert data.task == Classification(2)
    found = list(data.recordings)
    assert Counter(r.session for r in found) == {1: 10, 2: 5, 3: 5}
    assert {(r.subject, r.scene) for r in found} == {(17, 17)}
    for recording in found:
        start = first_frame(recording)
        stream = recording.streams["mmwave"]
        wanted = np.stack([powers(n) for n in range(start, start + 8)])
        np.testing.assert_array_equal(stream.values, wanted)
        assert stream.rate == 10
        ahead = range(start + 8, start + 8 + future)
        assert recording.target == max(blocked(n) for n in ahead)
    starts = [first_frame(r) for r in found if r.session == 1]
    assert starts == [*range(1, 6), *range(2 * LENGTH + 1, 2 * LENGTH + 6)]
    assert found[0].name == f"scenario17/future-{future}/scenario17_dev_series_test.csv, line 6"


def test_a_shorter_window_keeps_the_last_frames(tmp_path: Path) -> None:
    write(tmp_path)
    whole, short = read(tmp_path), read(tmp_path, window=0.3)
    for a, b in zip(whole, short, strict=True):
        np.testing.assert_array_equal(b.streams["mmwave"].values, a.streams["mmwave"].values[5:])
        assert a.target == b.target


def test_whole_sequences_have_the_label_of_each_frame(tmp_path: Path) -> None:
    write(tmp_path)
    found = read(tmp_path, future=0, split="time")
    assert [(r.session, first_frame(r)) for r in found] == [
        (3, 3 * LENGTH + 1), (2, LENGTH + 1), (1, 1), (1, 2 * LENGTH + 1)
    ]  # fmt: skip
    for recording in found:
        frames = range(first_frame(recording), first_frame(recording) + LENGTH)
        assert isinstance(recording.target, Stream)
        assert recording.target.values.tolist() == [blocked(n) for n in frames]
        assert len(recording.streams["mmwave"].values) == LENGTH


def test_several_scenarios_are_several_subjects(tmp_path: Path) -> None:
    write(tmp_path, 17)
    write(tmp_path, 20)
    assert Counter(r.subject for r in read(tmp_path, future=1)) == {17: 20, 20: 20}


def test_lidar_is_read_where_the_tables_name_it(tmp_path: Path) -> None:
    home = write(tmp_path, 24, lidar=True)
    (home / "unit1/lidar_data").mkdir()
    for frame in range(1, 4 * LENGTH + 1):
        scan = np.stack([np.full(216, frame), np.arange(216)], axis=1)
        savemat(home / f"unit1/lidar_data/lidar_{frame}.mat", {"data": scan})
    for recording in read(tmp_path, future=1):
        stream = recording.streams["lidar"]
        assert stream.kind == "points"
        assert stream.values.shape == (8, 216, 2)
        start = first_frame(recording)
        np.testing.assert_array_equal(stream.values[:, 7, 0], range(start, start + 8))


def test_what_would_leak_or_misplace_is_refused() -> None:
    splits: tuple[SplitKind, ...] = ("time", "trial")
    for split in splits:
        with pytest.raises(CommunisError, match=f"split = '{split}' would leak"):
            Deepsense(split=split)
    for window, rate in ((0.75, 0.0), (0.9, 0.0), (0.8, 20.0)):
        with pytest.raises(CommunisError, match="a series has 8 frames"):
            Deepsense(window=window, rate=rate)
    Deepsense(future=0, split="time", window=1.0)


def test_bad_files_are_named(tmp_path: Path) -> None:
    home = write(tmp_path)
    table = home / "future-5/scenario17_dev_series_train.csv"
    good = table.read_text("utf-8")
    lines = good.splitlines()

    def refused(path: Path, text: str | None, wanted: str, future: int = 5) -> None:
        kept = path.read_bytes()
        if text is None:
            path.unlink()
        else:
            path.write_text(text, "utf-8")
        with pytest.raises(CommunisError, match=wanted) as error:
            read(tmp_path, future=future)
        assert str(path) in str(error.value)
        path.write_bytes(kept)

    refused(table, "", "not a readable table")
    refused(table, good.replace(",", ";"), "line 1: no column unit1_pwr_60ghz_1")
    refused(table, good.replace("blockage_5", "blockage"), "line 1: no column blockage_5")
    refused(table, good[: good.rindex(",0,")], "line 11: cut short")
    refused(table, lines[0] + "\n", "line 2: cut short")
    refused(table, good[:-2] + "7\n", "line 11: expected a blockage of 0 or 1")
    gap = good.replace("mmWave_power_56.txt", "mmWave_power_57.txt")  # the last of line 2
    refused(table, gap, "line 2: frames do not follow each other")
    refused(table, good.replace("mmWave_power_3.txt", "three"), "expected .*mmWave_power_NUMBER")
    frame = home / "unit1/mmWave_data/mmWave_power_3.txt"
    refused(frame, None, "not complete")
    refused(frame, "0.1\n0.2\n", "2 numbers, expected 64")
    refused(frame, "x\n" * 64, "expected numbers, one per line")
    refused(home / "unit1/label_data/label_3.txt", "2\n", "expected 0 .* or 1", future=0)
    for path in home.glob("future-1/*"):
        path.unlink()
    with pytest.raises(CommunisError, match="no table in a folder future-1"):
        read(tmp_path, future=1)


def test_training_series_with_frames_of_the_test_are_left_out(tmp_path: Path) -> None:
    home = write(tmp_path)
    frames = home / "unit1/mmWave_data"
    copied = (frames / f"mmWave_power_{3 * LENGTH + 2}.txt").read_text("utf-8")  # a test frame
    (frames / "mmWave_power_3.txt").write_text(copied, "utf-8")  # seen by the series from 1 to 3
    kept = read(tmp_path)
    assert Counter(r.session for r in kept) == {1: 7, 2: 5, 3: 5}
    assert min(first_frame(r) for r in kept if r.session == 1) == 4
    assert Counter(r.session for r in read(tmp_path, copies=True)) == {1: 10, 2: 5, 3: 5}
    assert Counter(r.session for r in read(tmp_path, future=0)) == {1: 1, 2: 1, 3: 1}


def frames_of(recordings: list[Recording], part: int) -> list[set[bytes]]:
    mine = [r.streams["mmwave"].values for r in recordings if r.session == part]
    return [{frame.tobytes() for frame in values} for values in mine]


@pytest.mark.slow
def test_real_parts_of_the_owner_leak_and_ours_do_not(real: Callable[[str], Path]) -> None:
    folder = real("deepsense6g_scenario17")
    official = read(folder, future=1, copies=True)
    assert Counter(r.session for r in official) == {1: 380, 2: 162, 3: 50}
    assert Counter(r.target for r in official) == {0: 296, 1: 296}
    for recording in official:
        values = recording.streams["mmwave"].values
        assert values.shape == (8, 64)
        assert 0 < values.min() <= values.max() < 0.02
    trained = set[bytes]().union(*frames_of(official, 1))
    assert sum(bool(series & trained) for series in frames_of(official, 3)) == 5
    assert sum(series <= trained for series in frames_of(official, 3)) == 2
    assert sum(bool(series & trained) for series in frames_of(official, 2)) == 32
    ours = read(folder, future=1)
    assert Counter(r.session for r in ours) == {1: 352, 2: 162, 3: 50}
    trained = set[bytes]().union(*frames_of(ours, 1))
    assert not any(series & trained for part in (2, 3) for series in frames_of(ours, part))


@pytest.mark.slow
def test_real_series_that_look_far_ahead(real: Callable[[str], Path]) -> None:
    found = read(real("deepsense6g_scenario17"), copies=True)
    assert Counter(r.session for r in found) == {1: 4176, 2: 1189, 3: 638}


@pytest.mark.slow
def test_real_sequences(real: Callable[[str], Path]) -> None:
    found = read(real("deepsense6g_scenario17"), future=0, copies=True)
    assert Counter(r.session for r in found) == {1: 144, 2: 41, 3: 22}
    for recording in found:
        assert isinstance(recording.target, Stream)
        assert recording.target.values.shape == (46,)
        assert recording.target.values[36] == 1


@pytest.mark.parametrize("name", ["/etc/mmWave_power_3.txt", "../../mmWave_power_3.txt"])
def test_tables_name_files_of_their_scenario_only(tmp_path: Path, name: str) -> None:
    path = write(tmp_path) / "future-1" / "scenario17_dev_series_val.csv"
    text = path.read_text("utf-8").replace("./unit1/mmWave_data/mmWave_power_25.txt", name)
    path.write_text(text.replace("_3.txt", "_25.txt"), "utf-8")
    with pytest.raises(CommunisError, match=r"series_val\.csv: names .*expected a file below"):
        read(tmp_path, future=1)
