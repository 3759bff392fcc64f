"""PAMAP2: every column in its place, heart rate, gaps, and files that are not right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.data.recordings.recording import UNLABELLED, Recording, Stream
from communis.data.sources.pamap2 import LABELS, Pamap2, heart

from .made_pamap2 import SITES, rows, value, write


def only(source: Pamap2) -> Recording:
    [recording] = source.open().recordings
    return recording


def labels(recording: Recording) -> list[int]:
    assert isinstance(recording.target, Stream)
    return [int(c) for c in recording.target.values]


def test_every_column_lands_in_its_place(tmp_path: Path) -> None:
    write(tmp_path, rows([0, 1, 24, 12] * 5), 103)
    recording = only(Pamap2(folder=str(tmp_path)))
    assert set(recording.streams) == {
        *(f"{site}_{sensor}" for site in SITES for sensor in ("acc", "gyro", "mag")),
        "heart",
    }
    for site in SITES:
        for sensor, official in (("acc", "acc16"), ("gyro", "gyro"), ("mag", "mag")):
            stream = recording.streams[f"{site}_{sensor}"]
            assert stream.rate == 100
            for channel, axis in enumerate("xyz"):
                for row in (0, 19):
                    expected = value(f"{site}_{official}{axis}", row)
                    assert stream.values[row, channel] == pytest.approx(expected, abs=1e-3)
    assert labels(recording)[:4] == [UNLABELLED, 0, 11, LABELS.index("ascending stairs")]
    assert (recording.subject, recording.session) == (103, 1)
    assert recording.name == "PAMAP2_Dataset/Protocol/subject103.dat"


def test_units_and_labels(tmp_path: Path) -> None:
    write(tmp_path, rows([1] * 3))
    found = Pamap2(folder=str(tmp_path)).open()
    assert found.units["hand_acc"] == "m/s2"
    assert found.units["ankle_gyro"] == "rad/s"
    assert found.units["chest_mag"] == "uT"
    assert found.units["heart"] == "bpm"
    assert len(found.units) == 10
    assert found.labels == LABELS
    assert len(LABELS) == 12


def test_sensors_of_all_sites_in_one_modality(tmp_path: Path) -> None:
    write(tmp_path, rows([1] * 4))
    source = Pamap2(folder=str(tmp_path), group="sensor")
    streams = only(source).streams
    shapes = {m: stream.values.shape[1] for m, stream in streams.items()}
    assert shapes == {"acc": 9, "gyro": 9, "mag": 9, "heart": 1}
    official = [value(f"{site}_gyro{axis}", 2) for site in SITES for axis in "xyz"]
    assert streams["gyro"].values[2] == pytest.approx(official, abs=1e-3)
    assert dict(source.open().units) == {
        "acc": "m/s2",
        "gyro": "rad/s",
        "mag": "uT",
        "heart": "bpm",
    }


def test_six_modalities_of_fedduet(tmp_path: Path) -> None:
    write(tmp_path, rows([1] * 4))
    streams = only(Pamap2(folder=str(tmp_path), sensors=("acc", "gyro"))).streams
    assert len(streams) == 6
    assert set(only(Pamap2(folder=str(tmp_path), sites=("ankle",), sensors=("mag",))).streams) == {
        "ankle_mag"
    }


def test_lost_samples_stay_nan(tmp_path: Path) -> None:
    table = rows([1] * 6)
    table[2, 20:37] = np.nan
    write(tmp_path, table)
    streams = only(Pamap2(folder=str(tmp_path))).streams
    assert np.isnan(streams["chest_gyro"].values).all(1).tolist() == [0, 0, 1, 0, 0, 0]
    assert np.isfinite(streams["hand_gyro"].values).all()


def test_rows_that_are_missing_leave_a_gap(tmp_path: Path) -> None:
    table = np.delete(rows([4] * 40), range(10, 15), 0)
    write(tmp_path, table)
    recording = only(Pamap2(folder=str(tmp_path)))
    acc = recording.streams["hand_acc"].values
    assert len(acc) == 40
    assert np.flatnonzero(np.isnan(acc).any(1)).tolist() == [10, 11, 12, 13, 14]
    assert acc[15, 0] == pytest.approx(value("hand_acc16x", 15), abs=1e-3)
    assert labels(recording)[9:16] == [3, -1, -1, -1, -1, -1, 3]


def test_time_stamps_late_in_a_recording_still_fall_on_their_steps(tmp_path: Path) -> None:
    write(tmp_path, rows([4] * 300, start=3769.55))
    assert np.isfinite(only(Pamap2(folder=str(tmp_path))).streams["hand_acc"].values).all()


def test_heart_rate_is_the_mean_of_a_step_then_held() -> None:
    readings = np.full(200, np.nan, np.float32)
    readings[[1, 12, 22, 105]] = 100, 104, 90, 80
    assert np.isnan(heart(readings, 0).values[:, 0]).tolist() == [0, 0, 1, 1, 1, 0, 1, 1, 1, 1]
    held = heart(readings, 0.4)
    assert held.rate == 5
    expected = [102, 90, 90, 90, np.nan, 80, 80, 80, np.nan, np.nan]
    assert held.values[:, 0] == pytest.approx(expected, nan_ok=True)
    assert held.values.dtype == np.float32
    assert np.isnan(heart(np.full(30, np.nan, np.float32), 3).values).all()


def test_heart_rate_before_the_first_reading_is_unknown() -> None:
    readings = np.full(60, np.nan, np.float32)
    readings[45] = 77
    assert heart(readings, 10).values[:, 0] == pytest.approx([np.nan, np.nan, 77], nan_ok=True)


def test_optional_activities_only_if_asked_for(tmp_path: Path) -> None:
    write(tmp_path, rows([1, 9]), 105)
    write(tmp_path, rows([0, 20, 18]), 105, "Optional")
    assert labels(only(Pamap2(folder=str(tmp_path)))) == [0, UNLABELLED]
    found = Pamap2(folder=str(tmp_path), optional=True).open()
    assert len(found.labels) == 18
    optional, protocol = found.recordings
    assert [found.labels[c] for c in labels(optional)[1:]] == ["playing soccer", "folding laundry"]
    assert found.labels[labels(protocol)[1]] == "watching TV"
    assert (optional.session, protocol.session) == (2, 1)


def test_subjects_can_be_left_out(tmp_path: Path) -> None:
    for subject in (101, 108, 109):
        write(tmp_path, rows([1, 1]), subject)
    kept = Pamap2(folder=str(tmp_path / "PAMAP2_Dataset"), subjects=tuple(range(101, 109)))
    assert [r.subject for r in kept.open().recordings] == [101, 108]
    with pytest.raises(CommunisError, match="of the subjects 102"):
        list(Pamap2(folder=str(tmp_path), subjects=(102,)).open().recordings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sites": ("wrist",)}, "sites: no 'wrist'; there are hand, chest, ankle"),
        ({"sensors": ("ecg",)}, "sensors: no 'ecg'; there are acc, gyro, mag, heart"),
        ({"subjects": (9,)}, "subjects: no 9; there are 101"),
        ({"heart_hold": -1.0}, "heart_hold must be at least 0"),
    ],
)
def test_settings_that_mean_nothing(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CommunisError, match=message):
        Pamap2(**settings)  # type: ignore[arg-type]


def bad(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(CommunisError) as error:
        list(Pamap2(folder=str(path.parents[2])).open().recordings)
    assert str(path) in str(error.value)
    return str(error.value)


def test_bad_files_are_named_with_their_line(tmp_path: Path) -> None:
    path = write(tmp_path, rows([1] * 5))
    text = path.read_text()
    assert "line 5: 40 columns; expected 54" in bad(
        path, "\n".join(text.split("\n")[:4]) + "\n1" + " 1" * 39
    )
    assert "line 1" in bad(path, text.replace(" ", ","))
    assert "line 1: 53 columns" in bad(
        path, "\n".join(t.partition(" ")[2] for t in text.split("\n"))
    )
    assert "empty" in bad(path, "")
    assert "line 3: '8.4O'" in bad(path, text.replace("8.4 ", "8.4O "))
    assert "line 2: label 8" in bad(path, text.replace("8.39 1 ", "8.39 8 "))
    assert "line 2: label 1.5" in bad(path, text.replace("8.39 1 ", "8.39 1.5 "))
    assert "line 3: time stamp 8 s after 8.39 s" in bad(path, text.replace("8.4 1", "8 1"))
    assert "line 2: time stamp nan" in bad(path, text.replace("8.39 1", "NaN 1"))
    assert "12.2 Hz, expected 100 Hz" in bad(
        path,
        "\n".join(
            f"{8 + n / 10:g} {t.partition(' ')[2]}" for n, t in enumerate(text.split("\n")[:5])
        ),
    )


def test_files_in_other_places_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, rows([1] * 2), session="Test")
    with pytest.raises(CommunisError, match="expected Protocol or Optional") as error:
        list(Pamap2(folder=str(tmp_path)).open().recordings)
    assert str(path) in str(error.value)
    path.rename(path.with_name("subject100.dat"))
    with pytest.raises(CommunisError, match=r"subject100.dat: expected subject101.dat to"):
        list(Pamap2(folder=str(tmp_path)).open().recordings)
