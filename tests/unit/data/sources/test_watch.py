"""The smartwatch recordings, as they lie in the installed seglearn package."""

from __future__ import annotations

import hashlib
import os
import sys
from collections import Counter
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from communis import CommunisError, Fleet, Streams
from communis.data.recordings.recording import Dataset
from communis.data.recordings.windows import TEST, TRAIN, UNUSED, VAL
from communis.data.sources import watch


def installed() -> bool:
    """Asked without importing it: its imports are slow and not needed."""
    try:
        return bool(distribution("seglearn"))
    except PackageNotFoundError:
        return False


needs_seglearn = pytest.mark.skipif(not installed(), reason="seglearn is not installed")


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    if not installed():
        pytest.skip("seglearn is not installed")
    made = watch.read(watch.location())
    return replace(made, recordings=tuple(made.recordings))


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


@needs_seglearn
def test_another_window_length_cuts_otherwise() -> None:
    data = watch.Watch(window=1.0).load(Streams(0))
    assert data.inputs["acc"].shape[1:] == (3, 50)
    assert len(data) > 2 * 1833


@needs_seglearn
def test_each_subject_becomes_a_client() -> None:
    fleet = Fleet.of(watch.Watch().load(Streams(0)))
    assert len(fleet) == 10


@needs_seglearn
def test_reading_does_not_import_the_package() -> None:
    before = "seglearn" in sys.modules
    watch.Watch().load(Streams(0))
    assert ("seglearn" in sys.modules) == before


@needs_seglearn
def test_a_corrupted_file_is_refused_before_it_is_unpickled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = bytearray(watch.location().read_bytes())
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
    assert "pip install --force-reinstall seglearn==1.2.5" in str(caught.value)


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
    with pytest.raises(CommunisError, match=r"gone\.npy: No such file.*pip install --force"):
        list(watch.recordings(tmp_path / "gone.npy"))


def test_a_missing_package_gives_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(watch, "distribution", missing)
    with pytest.raises(CommunisError, match=r"pip install 'communis\[watch\]'"):
        watch.Watch().load(Streams(0))
