"""The smartwatch recordings: the real file where it was fetched, and how it is fetched."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Fleet, Streams
from communis.data.recordings.recording import Dataset
from communis.data.recordings.windows import TEST, TRAIN, UNUSED, VAL
from communis.data.sources import watch
from tests.unit.data.fetch import made_wheel


@pytest.fixture(scope="module")
def dataset(watch_recordings: Path) -> Dataset:
    made = watch.read(watch_recordings)
    return replace(made, recordings=tuple(made.recordings))


@pytest.fixture
def carried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A wheel with a small file of recordings, known to the source, in a folder where pip looks."""
    x = np.zeros((10 * 128, 6))
    recordings = {"X": [x, x], "y": [2, 0], "subject": [3, 4], "side": [1, 1]}
    content = BytesIO()
    np.save(content, np.array(recordings, dtype=object), allow_pickle=True)
    path, wheel = made_wheel.write(tmp_path / "index", "watchwheel", content.getvalue())
    monkeypatch.setattr(watch, "ABOUT", replace(watch.ABOUT, files=wheel.file, wheel=wheel))
    monkeypatch.setattr(watch, "SHA256", wheel.file_sha256)
    monkeypatch.setenv("COMMUNIS_DATA", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    return path


def test_ten_subjects_did_seven_exercises_with_both_arms(dataset: Dataset) -> None:
    assert len(tuple(dataset.recordings)) == 140
    assert {r.subject for r in dataset.recordings} == set(range(1, 11))
    assert dataset.labels == ("PEN", "ABD", "FEL", "IR", "ER", "TRAP", "ROW")
    once = Counter((r.subject, r.target, r.session) for r in dataset.recordings)
    assert len(once) == 10 * 7 * 2
    assert set(once.values()) == {1}


def test_streams_are_three_axes_each_at_fifty_hertz(dataset: Dataset) -> None:
    for recording in dataset.recordings:
        assert list(recording.streams) == ["acc", "gyro"]
        assert {stream.rate for stream in recording.streams.values()} == {50.0}
        acc, gyro = (recording.streams[m].values for m in ("acc", "gyro"))
        assert acc.shape == gyro.shape == (len(acc), 3)
        assert recording.seconds == len(acc) / 50
        assert np.isfinite(acc).all()
        assert np.isfinite(gyro).all()
    # Gravity tells which of the two is the accelerometer, and that its unit is g.
    lengths = {
        m: np.concatenate([np.linalg.norm(r.streams[m].values, axis=1) for r in dataset.recordings])
        for m in ("acc", "gyro")
    }
    assert np.std(lengths["acc"]) < 0.5
    assert 0.9 < np.median(lengths["acc"]) < 1.1
    assert not 0.8 < np.median(lengths["gyro"]) < 1.2


def test_windows_are_counted_by_hand(dataset: Dataset) -> None:
    data = watch.Watch().load(Streams(0))
    per_recording = [len(r.streams["acc"].values) // 128 for r in dataset.recordings]
    assert len(data) == sum(per_recording) == 1833
    assert data.inputs["acc"].shape == data.inputs["gyro"].shape == (1833, 3, 128)
    assert data.inputs["acc"].dtype == np.float32
    for subject in range(1, 11):
        own = [
            n
            for n, r in zip(per_recording, dataset.recordings, strict=True)
            if r.subject == subject
        ]
        assert int((data.owner == subject).sum()) == sum(own)
    assert data.labels == dataset.labels
    assert data.task.classes == 7
    # One window is left out at each of the two borders in each of the 140 recordings.
    counts = [int((data.split == s).sum()) for s in (TRAIN, VAL, TEST, UNUSED)]
    assert counts[3] == 2 * 140
    assert [n / (1833 - 280) for n in counts[:3]] == pytest.approx([0.6, 0.2, 0.2], abs=0.03)


def test_the_first_window_is_the_start_of_the_first_recording(dataset: Dataset) -> None:
    data = watch.Watch().load(Streams(0))
    first = next(iter(dataset.recordings))
    assert np.array_equal(
        data.inputs["acc"][0], first.streams["acc"].values[:128].T.astype(np.float32)
    )
    assert np.array_equal(
        data.inputs["gyro"][1], first.streams["gyro"].values[128:256].T.astype(np.float32)
    )
    assert (data.target[0], data.owner[0]) == (first.target, first.subject)


def test_another_window_length_cuts_otherwise(watch_recordings: Path) -> None:
    data = watch.Watch(window=1.0).load(Streams(0))
    assert data.inputs["acc"].shape[1:] == (3, 50)
    assert len(data) > 2 * 1833


def test_each_subject_becomes_a_client(watch_recordings: Path) -> None:
    fleet = Fleet.of(watch.Watch().load(Streams(0)))
    assert len(fleet) == 10


def test_a_corrupted_file_is_refused_before_it_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, watch_recordings: Path
) -> None:
    content = bytearray(watch_recordings.read_bytes())
    content[len(content) // 2] ^= 1
    copy = tmp_path / "watch_dataset.npy"
    copy.write_bytes(content)

    def forbidden(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("the file was loaded")

    monkeypatch.setattr(np, "load", forbidden)
    with pytest.raises(CommunisError) as caught:
        list(watch.recordings(copy))
    assert str(copy) in str(caught.value)
    assert watch.SHA256 in str(caught.value)
    assert f"communis data fetch watch --into {tmp_path}" in str(caught.value)


def test_a_pickle_in_its_place_is_not_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "it ran"),)

    trap = tmp_path / "watch_dataset.npy"
    np.save(trap, np.array(Trap(), dtype=object), allow_pickle=True)
    with pytest.raises(CommunisError, match="sha256"):
        list(watch.recordings(trap))
    assert not (tmp_path / "it ran").exists()
    np.load(trap, allow_pickle=True)
    assert (tmp_path / "it ran").exists()  # so it was a trap


def test_what_is_unpickled_is_what_was_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though another file has taken its place in between."""

    class Trap:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "it ran"),)

    path = tmp_path / "watch_dataset.npy"
    good = {"X": [np.zeros((9, 6))], "y": [2], "subject": [3], "side": [1]}
    np.save(path, np.array(good, dtype=object), allow_pickle=True)
    real = hashlib.sha256
    monkeypatch.setattr(watch, "SHA256", real(path.read_bytes()).hexdigest())

    def late(content: bytes) -> Any:
        np.save(path, np.array(Trap(), dtype=object), allow_pickle=True)
        return real(content)

    monkeypatch.setattr(hashlib, "sha256", late)
    (recording,) = watch.recordings(path)
    assert (recording.target, recording.subject, recording.session) == (2, 3, 1)
    assert not (tmp_path / "it ran").exists()


def test_a_missing_file_is_named_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match=r"gone\.npy: No such file.*communis data fetch watch"):
        list(watch.recordings(tmp_path / "gone.npy"))


def test_recordings_are_fetched_when_they_are_first_used(
    carried: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "communis"):
        data = watch.Watch().load(Streams(0))
    assert data.target.tolist() == [2] * 10 + [0] * 10
    place = tmp_path / "home" / "watch"
    assert [path.name for path in place.iterdir()] == ["recordings.npy"]
    (line,) = (text for text in caplog.messages if "fetching" in text)
    for part in ("watchwheel 1.0", "MB, BSD-3-Clause", "Burns et al. 2018", str(place)):
        assert part in line
    carried.unlink()
    assert len(watch.Watch().load(Streams(0))) == 20  # from what is kept


def test_nothing_is_fetched_into_a_folder_that_the_user_names(
    carried: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    with pytest.raises(CommunisError, match=r"mine: no file matches .*communis data fetch watch"):
        watch.Watch(folder=str(folder)).load(Streams(0))
    assert not list(folder.iterdir())
