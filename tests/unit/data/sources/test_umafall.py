"""UMAFall: sensors by the header, uneven and batched time stamps, and files that are not right."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.data.recordings.recording import Recording
from communis.data.sources.umafall import LABELS, Umafall, latest

from .made_umafall import Row, samples, write

PLACES = {0: "pocket", 1: "chest", 2: "waist", 3: "wrist", 4: "ankle"}
SENSORS = ("acc", "gyro", "mag")


def everything() -> list[Row]:
    """The phone at 200 Hz and four tags at 20 Hz, mixed as they arrive, for one second."""
    rows = samples(0, 0, range(0, 1000, 5))
    for tag in (1, 2, 3, 4):
        for kind in range(3):
            rows += samples(tag, kind, range(0, 1000, 50), first=int(kind > 0))
    return sorted(rows)


def only(folder: Path, **settings: object) -> Recording:
    [recording] = Umafall(folder=str(folder), **settings).open().recordings  # type: ignore[arg-type]
    return recording


def test_every_sample_lands_in_its_place(tmp_path: Path) -> None:
    write(tmp_path, everything())
    found = Umafall(folder=str(tmp_path)).open()
    [recording] = found.recordings
    assert set(recording.streams) == set(found.units)
    assert len(found.units) == 13
    for number, place in PLACES.items():
        for kind, sensor in enumerate(SENSORS if number else ("acc",)):
            stream = recording.streams[f"{place}_{sensor}"]
            assert stream.rate == (20 if number else 200)
            step = np.arange(len(stream.values))[:, None]
            expected = 10 * number + kind + np.array([0, 0.1, 0.2]) + step / 1000
            np.testing.assert_allclose(stream.values, expected, rtol=1e-5, atol=1e-4)
            assert len(stream.values) == (20 if number else 200)
            assert found.units[f"{place}_{sensor}"] == ("g", "deg/s", "uT")[kind]
    assert recording.target == LABELS.index("Walking")
    assert (recording.subject, recording.trial, recording.session) == (4, 2, 20160613)
    assert recording.name.startswith("UMAFall_Dataset/UMAFall_Subject_04_ADL_Walking_2_")
    assert found.task.classes == len(found.labels) == 15


def test_the_header_says_where_a_sensor_is_and_sensors_may_be_missing(tmp_path: Path) -> None:
    path = write(tmp_path, samples(1, 0, range(0, 1000, 50)), sensors=(0, 1))
    path.write_text(path.read_text().replace("CHEST", "ANKLE"))
    recording = only(tmp_path)
    assert set(recording.streams) == {"ankle_acc"}  # the phone is named, but has no samples


def test_fall_as_target_and_sites(tmp_path: Path) -> None:
    write(tmp_path, everything(), "Subject_04_Fall_forwardFall_1")
    found = Umafall(folder=str(tmp_path / "UMAFall_Dataset"), target="fall", sites=("wrist",))
    dataset = found.open()
    [recording] = dataset.recordings
    assert (recording.target, dataset.labels) == (1, ("ADL", "Fall"))
    assert set(recording.streams) == {"wrist_acc", "wrist_gyro", "wrist_mag"} == set(dataset.units)
    assert only(tmp_path).target == LABELS.index("forwardFall")
    with pytest.raises(CommunisError, match=r"sites: no 'head'; there are pocket"):
        Umafall(sites=("head",))


def test_the_latest_times_that_batched_stamps_allow() -> None:
    assert latest(np.array([100.0, 100, 100, 105]), 5).tolist() == [90, 95, 100, 105]
    assert latest(np.array([0.0, 5, 10]), 5).tolist() == [0, 5, 10]
    # a late arrival is no later sample; a lost stretch stays one
    assert latest(np.array([0.0, 12, 12, 15, 90]), 5).tolist() == [0, 5, 10, 15, 90]


def test_a_batch_of_the_phone_is_spread_over_the_time_before_it(tmp_path: Path) -> None:
    true = np.arange(0, 1000, 5.0)
    stamps = np.maximum(true, 200)  # what was sensed before 200 ms arrives at once
    write(tmp_path, samples(0, 0, stamps, offset=1))
    values = only(tmp_path).streams["pocket_acc"].values[:, 0]
    np.testing.assert_allclose(values[40:], 1 + np.arange(40, 200) / 1000, atol=1e-5)
    np.testing.assert_allclose(values[2:40], 1 + np.arange(2, 40) / 1000, atol=1e-3)


def test_uneven_stamps_of_tags_are_interpolated_and_long_silences_are_not(tmp_path: Path) -> None:
    stamps = [0, 40, 110, 150, 200, 600, 650, 700]
    write(tmp_path, samples(3, 0, stamps, offset=-30))
    values = only(tmp_path).streams["wrist_acc"].values[:, 0]
    expected = np.interp(np.arange(0, 701, 50), stamps, np.arange(8) / 1000)
    silent = np.isin(np.arange(0, 701, 50), (250, 300, 350, 400, 450, 500, 550))
    np.testing.assert_allclose(values[~silent], expected[~silent], atol=1e-6)
    assert np.isnan(values[silent]).all()


def test_zero_on_all_axes_is_no_field_and_no_gravity(tmp_path: Path) -> None:
    def dead(kind: int, count: int) -> list[Row]:
        rows = samples(2, kind, range(0, 1000, 50))
        return [
            (*row[:2], 0.0, 0.0, 0.0, *row[5:]) if n < count else row for n, row in enumerate(rows)
        ]

    write(tmp_path, [*dead(0, 1), *dead(1, 20), *dead(2, 10)])
    streams = only(tmp_path).streams
    assert np.isnan(streams["waist_acc"].values).any(1).sum() == 1
    assert np.isnan(streams["waist_mag"].values[:10]).all()
    assert np.isfinite(streams["waist_mag"].values[10:]).all()
    assert (streams["waist_gyro"].values == 0).all()  # a gyroscope at rest may read 0
    write(tmp_path, [*dead(0, 1), *dead(2, 20)])
    assert set(only(tmp_path).streams) == {"waist_acc"}  # a dead sensor is an absent one


def test_spreadsheets_spoil_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path, everything(), "Subject_13_ADL_Bending_1")
    head, sep, body = path.read_text().partition("Sensor ID;" + " " * 13 + "\n")
    assert sep
    head = head.replace("\n", ";;;;;;;\n")
    body = body.replace("\n", ";\n").replace(";1.001;", ";1.001.000.000.000.000;")
    path.write_text(head + sep + body)
    assert list(Umafall(folder=str(tmp_path)).open().recordings) == []
    assert "Subject_13_ADL_Bending_1" in caplog.text
    with pytest.raises(CommunisError, match=r"Bending_1.*csv, line 1: .*spreadsheet"):
        list(Umafall(folder=str(tmp_path), spoilt="refuse").open().recordings)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0;1;0;0.1", "0;1;0;0,1", r"line 24: '0,1' is not a number; expected 7 numbers"),
        ("0;1;0;0.1", "0;1;0.1", "line 24: 6 columns"),
        ("0;1;0;0.1;0.2;0;0", "0;1;0;0.1;0.2;3;0", "line 24: sensor type 3 of sensor 0"),
        ("0;1;0;0.1;0.2;0;0", "0;1;0;0.1;0.2;0;5", "line 24: sensor type 0 of sensor 5"),
        ("\n5;2;", "\n5;3;", r"line 33: sample number of pocket_acc is 3 after 1 \(line 24\)"),
        ("\n10;3;", "\n4;3;", r"time of pocket_acc is 4 after 5 \(line \d+\)"),
        ("; WAIST;", "; HEAD;", "line 10: a sensor at HEAD, expected one of RIGHTPOCKET"),
        ("%C4:", "% C4", "the header names no sensor"),
        ("% TimeStamp;", "% Time;", "line 19: expected a header that ends in '% TimeStamp;"),
    ],
)
def test_files_that_are_not_right_are_named(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    path = write(tmp_path, everything())
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(CommunisError, match=rf"Walking_2_2016-06-13_12-58-50\.csv.*{message}"):
        list(Umafall(folder=str(tmp_path)).open().recordings)


def test_a_file_cut_short_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, everything())
    text = path.read_text()
    path.write_text(text[:-12])
    with pytest.raises(CommunisError, match=r"csv, line 4\d\d: \d columns"):
        only(tmp_path)
    path.write_text(text[: text.index("\n0;") + 1])
    with pytest.raises(CommunisError, match="holds no numbers"):
        only(tmp_path)
    path.write_text("")
    with pytest.raises(CommunisError, match="line 1: expected a header"):
        only(tmp_path)


def test_another_trials_header_and_unknown_names_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, everything(), said="Subject_04_ADL_Walking_1")
    with pytest.raises(
        CommunisError, match=r"line 3: the header is of Subject_04_ADL_Walking_1, the file name"
    ):
        only(tmp_path)
    path.rename(path.with_name("UMAFall_Subject_04_ADL_Flying_1_2016-06-13_12-58-50.csv"))
    with pytest.raises(CommunisError, match=r"Flying.*one of the activities Aplausing"):
        only(tmp_path)


@pytest.mark.slow
def test_the_real_files(real: Callable[[str], Path]) -> None:
    source = Umafall(folder=str(real("umafall")))
    found = list(source.open().recordings)
    assert len(source.files()) == 204
    assert len(found) == 197  # the seven of subject 13 are spoilt
    assert {r.subject for r in found} == set(range(1, 20)) - {13}
    assert {r.target for r in found} == set(range(15))
    assert sum("waist_acc" in r.streams for r in found) == 164
    assert sum("pocket_acc" in r.streams for r in found) == 197
    weights = []
    for recording in found:
        assert 15 <= recording.seconds < 15.1
        phone = recording.streams["pocket_acc"]
        assert np.isnan(phone.values).mean() < 0.05
        weights.append(np.nanmedian(np.linalg.norm(phone.values, axis=1)))
    assert np.median(weights) == pytest.approx(1, abs=0.02)
