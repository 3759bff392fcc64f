"""Opportunity: every column in its place, labels, gaps, and files that are not right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from communis.core.errors import CommunisError
from communis.data.recordings.recording import UNLABELLED, Recording, Stream
from communis.data.sources.opportunity import Opportunity

from .made_opportunity import ACCELEROMETERS, COLUMNS, INERTIAL, rows, value, write


def only(source: Opportunity) -> Recording:
    [recording] = source.open().recordings
    return recording


def labels(recording: Recording) -> list[int]:
    assert isinstance(recording.target, Stream)
    return [int(c) for c in recording.target.values]


def test_the_made_files_have_the_official_columns() -> None:
    """Numbers from 1 on, as in the owner's column_names.txt."""
    assert len(COLUMNS) == 250
    official = {
        "acc RKN^ x": 2,
        "acc RH z": 37,
        "imu BACK accx": 38,
        "imu LLA magneticz": 98,
        "L-SHOE Eux": 103,
        "R-SHOE Compass": 134,
        "object CUP accX": 135,
        "reed 0": 195,
        "ambient DOOR1 x": 208,
        "location 0 x": 232,
        "Locomotion": 244,
        "HL_Activity": 245,
        "ML_Both_Arms": 250,
    }
    assert {name: COLUMNS.index(name) + 1 for name in official} == official


def test_every_column_lands_in_its_place(tmp_path: Path) -> None:
    write(tmp_path, rows(4))
    found = Opportunity(folder=str(tmp_path)).open()
    [recording] = found.recordings
    expected = {}
    for site in ACCELEROMETERS:
        name = site.lower().replace("^", "_upper") + ("lower" if site.endswith("_") else "")
        expected[f"{name}_acc"] = [f"acc {site} {axis}" for axis in "xyz"]
    for site in INERTIAL:
        for sensor, official in (("acc", "acc"), ("gyro", "gyro"), ("mag", "magnetic")):
            columns = [f"imu {site} {official}{axis}" for axis in "xyz"]
            expected[f"imu_{site.lower()}_{sensor}"] = columns
    for shoe, name in (("L-SHOE", "l_shoe"), ("R-SHOE", "r_shoe")):
        expected[f"{name}_acc"] = [f"{shoe} Body_A{axis}" for axis in "xyz"]
        expected[f"{name}_gyro"] = [f"{shoe} AngVelBodyFrame{axis}" for axis in "xyz"]
    assert set(recording.streams) == set(expected)
    assert len(expected) == 12 + 5 * 3 + 2 * 2
    for modality, columns in expected.items():
        stream = recording.streams[modality]
        assert stream.rate == 30
        scale = 1000 if modality.endswith("_acc") else 1
        for row in range(4):
            official_values = [value(column, row) / scale for column in columns]
            assert stream.values[row] == pytest.approx(official_values, rel=1e-6)
        assert found.units[modality] == ("g" if modality.endswith("_acc") else "a.u.")


def test_locomotion_gestures_and_activities(tmp_path: Path) -> None:
    write(
        tmp_path,
        rows(
            5,
            Locomotion=[0, 1, 2, 4, 5],
            ML_Both_Arms=[406516, 0, 405506, 404511, 408512],
            HL_Activity=[0, 101, 105, 103, 104],
        ),
    )
    source = Opportunity(folder=str(tmp_path))
    assert source.open().labels == ("stand", "walk", "sit", "lie")
    assert labels(only(source)) == [UNLABELLED, 0, 1, 2, 3]
    gestures = Opportunity(folder=str(tmp_path), target="gestures")
    names = gestures.open().labels
    assert len(names) == 17
    found = labels(only(gestures))
    assert found[1] == UNLABELLED
    assert [names[found[n]] for n in (0, 2, 3, 4)] == [
        "open door 1",
        "toggle switch",
        "close drawer 2",
        "clean table",
    ]
    assert labels(only(Opportunity(folder=str(tmp_path), target="activities"))) == [-1, 0, 4, 2, 3]


def test_times_of_no_class_as_a_class(tmp_path: Path) -> None:
    write(tmp_path, rows(2, ML_Both_Arms=[0, 406516]))
    source = Opportunity(folder=str(tmp_path), target="gestures", null=True)
    assert source.open().labels[-1] == "null"
    assert len(source.open().labels) == source.open().task.outputs == 18
    assert labels(only(source)) == [17, 0]


def test_seven_accelerometers_of_fedduet_in_daily_life(tmp_path: Path) -> None:
    for name in ("S1-ADL1", "S1-ADL5", "S4-ADL2", "S1-Drill"):
        write(tmp_path, rows(2), name)
    sites = ("rkn_upper", "hip", "lua_upper", "rua_lower", "lh", "back", "rkn_lower")
    source = Opportunity(folder=str(tmp_path), sites=sites, runs=(1, 2, 3, 4, 5))
    found = list(source.open().recordings)
    assert [(r.subject, r.session) for r in found] == [(1, 1), (1, 5), (4, 2)]
    assert set(found[0].streams) == {f"{site}_acc" for site in sites}
    drill = only(Opportunity(folder=str(tmp_path), runs=(0,)))
    assert (drill.subject, drill.session) == (1, 0)
    assert drill.name == "OpportunityUCIDataset/dataset/S1-Drill.dat"


def test_silent_sensors_stay_nan(tmp_path: Path) -> None:
    table = rows(6)
    table[:, 1:4] = np.nan
    table[2:4, 37:50] = np.nan
    write(tmp_path, table)
    streams = only(Opportunity(folder=str(tmp_path))).streams
    assert np.isnan(streams["rkn_upper_acc"].values).all()
    assert np.isnan(streams["imu_back_mag"].values).all(1).tolist() == [0, 0, 1, 1, 0, 0]
    assert np.isfinite(streams["hip_acc"].values).all()


def test_rows_that_are_missing_leave_a_gap(tmp_path: Path) -> None:
    write(tmp_path, np.delete(rows(90, Locomotion=[1] * 90), [30, 31], 0))
    recording = only(Opportunity(folder=str(tmp_path)))
    hip = recording.streams["hip_acc"].values
    assert len(hip) == 90
    assert np.flatnonzero(np.isnan(hip).any(1)).tolist() == [30, 31]
    assert labels(recording)[29:33] == [0, UNLABELLED, UNLABELLED, 0]
    assert hip[89, 0] == pytest.approx(value("acc HIP x", 89) / 1000)


def test_an_hour_falls_on_its_steps(tmp_path: Path) -> None:
    table = rows(40)
    table[:, 0] = np.round((np.arange(40) + 3600 * 30) * 1000 / 30)
    write(tmp_path, table)
    assert np.isfinite(only(Opportunity(folder=str(tmp_path))).streams["hip_acc"].values).all()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sites": ("HIP",)}, "sites: no 'HIP'; there are rkn_upper, hip"),
        ({"runs": (6,)}, "runs: no 6; there are 0, 1, 2, 3, 4, 5"),
    ],
)
def test_settings_that_mean_nothing(settings: dict[str, object], message: str) -> None:
    with pytest.raises(CommunisError, match=message):
        Opportunity(**settings)  # type: ignore[arg-type]


def bad(path: Path, text: str) -> str:
    path.write_text(text)
    with pytest.raises(CommunisError) as error:
        list(Opportunity(folder=str(path.parents[2])).open().recordings)
    assert str(path) in str(error.value)
    return str(error.value)


def test_bad_files_are_named_with_their_line(tmp_path: Path) -> None:
    path = write(tmp_path, rows(3, Locomotion=[1, 2, 4]))
    lines = path.read_text().splitlines()
    cut = " ".join(lines[2].split(" ")[:100])
    assert "line 3: 100 columns; expected 250" in bad(path, "\n".join([*lines[:2], cut]))
    assert "line 1" in bad(path, "\n".join(lines).replace(" ", ";"))
    assert "line 1: 249 columns" in bad(path, "\n".join(t.rpartition(" ")[0] for t in lines))
    assert "line 2: label 3; expected one of 0, 1, 2, 4, 5" in bad(
        path, "\n".join(lines).replace(" 2 0 0 0 0 0 0", " 3 0 0 0 0 0 0")
    )
    assert "line 2: time stamp 0.033 s after 0.067 s" in bad(
        path, "\n".join([lines[2], lines[1], lines[0]])
    )
    path.write_text("\n".join(lines))
    with pytest.raises(CommunisError, match="no file of the runs ADL3"):
        list(Opportunity(folder=str(tmp_path), runs=(3,)).open().recordings)


def test_a_run_there_is_not(tmp_path: Path) -> None:
    path = write(tmp_path, rows(2), "S5-ADL1")
    with pytest.raises(CommunisError, match=r"expected S1-ADL1\.dat") as error:
        list(Opportunity(folder=str(tmp_path)).open().recordings)
    assert str(path) in str(error.value)
