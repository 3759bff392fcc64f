"""MHEALTH: every column in its place, labels, and files that are not right."""

from __future__ import annotations

from pathlib import Path

import pytest

from communis.core.errors import CommunisError
from communis.data.recordings.recording import UNLABELLED, Stream
from communis.data.sources.mhealth import LABELS, Mhealth

from .made_mhealth import value, write

UNITS = {
    "chest_acc": "m/s2",
    "chest_ecg": "mV",
    "ankle_acc": "m/s2",
    "ankle_gyro": "deg/s",
    "ankle_mag": "a.u.",
    "arm_acc": "m/s2",
    "arm_gyro": "deg/s",
    "arm_mag": "a.u.",
}


def test_every_column_lands_in_its_place(tmp_path: Path) -> None:
    write(tmp_path, [0, 1, 12, 5], subject=10)
    found = Mhealth(folder=str(tmp_path)).open()
    [recording] = found.recordings
    assert dict(found.units) == UNITS
    assert set(recording.streams) == set(UNITS)
    for modality, stream in recording.streams.items():
        assert stream.rate == 50
        channels = "12" if modality == "chest_ecg" else "xyz"
        for row in range(4):
            expected = [value(modality + channel, row) for channel in channels]
            assert stream.values[row] == pytest.approx(expected, abs=1e-3)
    assert isinstance(recording.target, Stream)
    assert recording.target.values.tolist() == [UNLABELLED, 0, 11, LABELS.index("climbing stairs")]
    assert recording.target.rate == 50
    assert (recording.subject, recording.name) == (10, "MHEALTHDATASET/mHealth_subject10.log")
    assert len(found.labels) == 12


def test_modalities_of_relief(tmp_path: Path) -> None:
    write(tmp_path, [1, 2])
    [recording] = Mhealth(folder=str(tmp_path), group="sensor").open().recordings
    shapes = {m: stream.values.shape for m, stream in recording.streams.items()}
    assert shapes == {"acc": (2, 9), "gyro": (2, 6), "mag": (2, 6), "ecg": (2, 2)}
    official = [
        value(f"{site}_acc{axis}", 1) for site in ("chest", "ankle", "arm") for axis in "xyz"
    ]
    assert recording.streams["acc"].values[1] == pytest.approx(official, abs=1e-3)


def test_sites_and_sensors_can_be_chosen(tmp_path: Path) -> None:
    write(tmp_path, [1, 2])
    source = Mhealth(folder=str(tmp_path), sites=("chest", "arm"), sensors=("acc", "mag"))
    [recording] = source.open().recordings
    assert set(recording.streams) == {"chest_acc", "arm_acc", "arm_mag"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sites": ("wrist",)}, "sites: no 'wrist'; there are chest, ankle, arm"),
        ({"sensors": ("heart",)}, "sensors: no 'heart'"),
        ({"sites": ("ankle",), "sensors": ("ecg",)}, "none of ecg is at ankle"),
    ],
)
def test_settings_that_mean_nothing(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CommunisError, match=message):
        Mhealth(**settings)  # type: ignore[arg-type]


def bad(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(CommunisError) as error:
        list(Mhealth(folder=str(path.parents[1])).open().recordings)
    assert str(path) in str(error.value)
    return str(error.value)


def test_bad_files_are_named_with_their_line(tmp_path: Path) -> None:
    path = write(tmp_path, [1, 2, 3])
    text = path.read_text()
    assert "line 3: 20 columns" in bad(path, "\t".join(text.split("\t")[: 23 * 2 + 20]))
    assert "line 1" in bad(path, text.replace("\t", ","))
    assert "line 1: 23 columns" in bad(path, "\n".join(t[: -len("\t1")] for t in text.split("\n")))
    assert "line 2: label 13" in bad(path, text.replace("\t2\n", "\t13\n"))
    assert "line 2: label nan" in bad(path, text.replace("\t2\n", "\tNaN\n"))
    assert "empty" in bad(path, "")


def test_a_subject_there_is_not(tmp_path: Path) -> None:
    path = write(tmp_path, [1], subject=11)
    with pytest.raises(CommunisError, match=r"mHealth_subject1\.log to") as error:
        list(Mhealth(folder=str(tmp_path)).open().recordings)
    assert str(path) in str(error.value)
