"""USC-HAD: every column in its place, fields that contradict the path, and unreadable files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.data.sources.usc_had import LABELS, UscHad

from .made_usc_had import readings, write


def test_every_column_lands_in_its_place(tmp_path: Path) -> None:
    write(tmp_path, 12, 11, 4)
    found = UscHad(folder=str(tmp_path)).open()
    [recording] = found.recordings
    assert dict(found.units) == {"acc": "g", "gyro": "deg/s"}
    assert found.labels == LABELS
    assert found.task.classes == len(LABELS) == 12
    for columns, modality in ((slice(0, 3), "acc"), (slice(3, 6), "gyro")):
        stream = recording.streams[modality]
        assert stream.rate == 100
        assert stream.values.dtype == np.float32
        np.testing.assert_allclose(stream.values, readings()[:, columns], rtol=1e-6)
    assert recording.target == LABELS.index("elevator up")
    assert (recording.subject, recording.trial) == (12, 4)
    assert recording.name == "USC-HAD/Subject12/a11t4.mat"


def test_subjects_come_in_the_order_of_their_numbers_with_or_without_the_top_folder(
    tmp_path: Path,
) -> None:
    for subject, activity in ((10, 1), (2, 12), (2, 3)):
        write(tmp_path, subject, activity, 1)
    for folder in (tmp_path, tmp_path / "USC-HAD"):
        found = UscHad(folder=str(folder)).open().recordings
        assert [(r.subject, r.target) for r in found] == [(2, 2), (2, 11), (10, 0)]


def test_the_misspelt_field_is_read(tmp_path: Path) -> None:
    write(tmp_path, 13, 11, 4, {"activity_number": None, "activity_numbr": "11"})
    [recording] = UscHad(folder=str(tmp_path)).open().recordings
    assert recording.target == 10


@pytest.mark.parametrize(
    ("field", "value"), [("subject", "2"), ("activity_number", "4"), ("trial", "3")]
)
def test_a_file_that_contradicts_its_path_is_refused_unless_told(
    tmp_path: Path, field: str, value: str
) -> None:
    write(tmp_path, 1, 5, 2, {field: value})
    with pytest.raises(CommunisError, match=r"a5t2\.mat: its fields state .* data\.check = false"):
        list(UscHad(folder=str(tmp_path)).open().recordings)
    [recording] = UscHad(folder=str(tmp_path), check=False).open().recordings
    assert (recording.subject, recording.target, recording.trial) == (1, 4, 2)


def test_the_owners_known_slips_go_by_their_path(tmp_path: Path) -> None:
    write(tmp_path, 14, 3, 2, {"activity_number": "2"})
    write(tmp_path, 5, 8, 3, {"trial": "2"})
    found = list(UscHad(folder=str(tmp_path)).open().recordings)
    assert [(r.subject, r.target, r.trial) for r in found] == [(5, 7, 3), (14, 2, 2)]


def test_a_field_that_is_no_number_is_named(tmp_path: Path) -> None:
    write(tmp_path, 1, 5, 2, {"trial": "two"})
    with pytest.raises(CommunisError, match=r"a5t2\.mat: trial is 'two'"):
        list(UscHad(folder=str(tmp_path)).open().recordings)
    write(tmp_path, 1, 5, 2, {"trial": None})
    with pytest.raises(CommunisError, match=r"a5t2\.mat: trial is empty"):
        list(UscHad(folder=str(tmp_path)).open().recordings)


@pytest.mark.parametrize("name", ["a13t1.mat", "a0t1.mat", "a1t1b.mat"])
def test_other_activities_and_names_are_refused(tmp_path: Path, name: str) -> None:
    path = write(tmp_path, 1, 1, 1)
    path.rename(path.with_name(name))
    with pytest.raises(CommunisError, match=rf"{name}: expected SubjectN/aXtY\.mat"):
        UscHad(folder=str(tmp_path)).open()


def test_broken_files_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, 1, 1, 1)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(CommunisError, match=r"a1t1\.mat: not a readable MATLAB file"):
        list(UscHad(folder=str(tmp_path)).open().recordings)
    write(tmp_path, 1, 1, 1, {"sensor_readings": readings()[:, :5]})
    with pytest.raises(CommunisError, match=r"a1t1\.mat: values of shape \(8, 5\)"):
        list(UscHad(folder=str(tmp_path)).open().recordings)
    write(tmp_path, 1, 1, 1, {"sensor_readings": None})
    with pytest.raises(CommunisError, match=r"a1t1\.mat: no variable sensor_readings"):
        list(UscHad(folder=str(tmp_path)).open().recordings)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match="communis data fetch usc_had"):
        UscHad(folder=str(tmp_path)).open()


@pytest.mark.slow
def test_the_real_files(real: Callable[[str], Path]) -> None:
    found = list(UscHad(folder=str(real("usc_had"))).open().recordings)
    assert len(found) == 14 * 12 * 3
    assert {r.subject for r in found} == set(range(1, 15))
    counts = np.bincount([r.target for r in found if isinstance(r.target, int)])
    assert counts.tolist() == [42] * 12
    still = [r for r in found if r.target in (7, 8, 9)]
    weight = [np.median(np.linalg.norm(r.streams["acc"].values, axis=1)) for r in still]
    assert 0.93 < min(weight) < max(weight) < 1.07
    assert not any(np.isnan(s.values).any() for r in found for s in r.streams.values())
    # Which way people turn tells left from right, also where a file calls itself the other.
    for label, sign in ((1, 1), (2, -1)):
        turns = [r.streams["gyro"].values[:, 0].mean() for r in found if r.target == label]
        assert min(sign * t for t in turns) > 0
