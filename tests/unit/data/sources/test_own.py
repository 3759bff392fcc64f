"""Your own files: every value in its place, or an error that names the place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from communis.core.errors import CommunisError
from communis.core.tasks import Classification, Counting, Localisation, Pose
from communis.data.own.guess import write_manifest
from communis.data.own.units import unit_name
from communis.data.recordings.recording import UNLABELLED, Dataset, Recording, Stream
from communis.data.sources.own import Own

MANIFEST = """
[files]
pattern = "*.csv"
[modalities.acc]
columns = ["ax", "ay", "az"]
rate = 50
unit = "g"
[label]
column = "activity"
classes = ["walk", "sit"]
[subject]
value = 4
"""


def opened(folder: Path, manifest: str) -> tuple[Dataset, list[Recording]]:
    (folder / "communis.toml").write_text(manifest)
    dataset = Own(folder=str(folder)).open()
    return dataset, list(dataset.recordings)


def table(rows: int, **columns: Any) -> pd.DataFrame:
    base: dict[str, Any] = {c: 10.0 * i + np.arange(rows) for i, c in enumerate(("ax", "ay", "az"))}
    return pd.DataFrame(base | {"activity": ["walk", "sit"] * (rows // 2)} | columns)


def steps(recording: Recording) -> Stream:
    assert isinstance(recording.target, Stream)
    return recording.target


def test_values_labels_and_units(tmp_path: Path) -> None:
    activity = ["sit", "walk", "", "walk"]
    table(4, activity=activity, ay=[1.5, np.nan, 2, 3]).to_csv(tmp_path / "a.csv", index=False)
    dataset, (recording,) = opened(tmp_path, MANIFEST)
    acc = recording.streams["acc"]
    expected = np.array([[0, 1.5, 20], [1, np.nan, 21], [2, 2, 22], [3, 3, 23]], np.float32)
    np.testing.assert_array_equal(acc.values, expected)
    assert acc.values.dtype == np.float32
    assert (acc.rate, recording.subject, recording.name) == (50, 4, "a.csv")
    assert steps(recording).values.tolist() == [1, 0, UNLABELLED, 0]
    assert steps(recording).rate == 50
    assert (dataset.task, dataset.labels) == (Classification(2), ("walk", "sit"))
    assert dataset.units == {"acc": "g"}


def test_the_cache_sees_manifest_and_files(tmp_path: Path) -> None:
    table(4).to_csv(tmp_path / "a.csv", index=False)
    opened(tmp_path, MANIFEST)
    assert Own(folder=str(tmp_path)).files() == [tmp_path / "communis.toml", tmp_path / "a.csv"]


@pytest.mark.parametrize("kind", ["semicolons", "no header", "npy", "parquet", "below a preamble"])
def test_ways_of_writing(tmp_path: Path, kind: str) -> None:
    frame = table(4, activity=[7, 9, 9, 7])
    manifest = MANIFEST.replace('["walk", "sit"]', '[9, 7]\nnames = ["nine", "seven"]')
    numbered = manifest.replace('["ax", "ay", "az"]', "[0, 1, 2]").replace('"activity"', "3")
    path = tmp_path / "a.csv"
    if kind == "semicolons":
        frame.astype({"ax": float}).to_csv(path, sep=";", decimal=",", index=False)
        manifest = manifest.replace('csv"', 'csv"\ndelimiter = ";"\ndecimal = ","')
    elif kind == "no header":
        frame.to_csv(path, header=False, index=False)
        manifest = numbered.replace('csv"', 'csv"\nheader = false')
    elif kind == "npy":
        np.save(tmp_path / "a.npy", frame.to_numpy(np.float64))
        manifest = numbered.replace("csv", "npy")
    elif kind == "parquet":
        frame.to_parquet(tmp_path / "a.parquet")
        manifest = manifest.replace("csv", "parquet")
    else:
        path.write_text("made by a logger\nversion 2\n" + frame.to_csv(index=False))
        manifest = manifest.replace('csv"', 'csv"\nskip = 2')
    dataset, (recording,) = opened(tmp_path, manifest)
    np.testing.assert_array_equal(recording.streams["acc"].values[3], [3, 13, 23])
    assert steps(recording).values.tolist() == [1, 0, 0, 1]
    assert dataset.labels == ("nine", "seven")


def test_values_from_names(tmp_path: Path) -> None:
    for place in ("S02/walk_fast_1.csv", "S10/sit_2.csv", "S10/other_3.csv"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        table(4).to_csv(tmp_path / place, index=False)
    manifest = (
        MANIFEST.replace("*.csv", "{subject}/{label}_{trial}.csv")
        .replace(
            'column = "activity"\nclasses = ["walk"', 'ignore = ["other"]\nclasses = ["walk_fast"'
        )
        .replace("[subject]\nvalue = 4\n", "[session]\nvalue = 3\n")
    )
    _, found = opened(tmp_path, manifest)
    assert [(r.subject, r.target, r.trial, r.session, r.name) for r in found] == [
        (2, 0, 1, 3, "S02/walk_fast_1.csv"),
        (10, 1, 2, 3, "S10/sit_2.csv"),
    ]


def test_keys_in_columns_cut_recordings(tmp_path: Path) -> None:
    """Names are numbered over all files, in sorted order; a subject that comes back is a new
    recording."""
    who = ["carl", "carl", "anna", "anna", "carl", "carl"]
    table(6, who=who, room=[1, 1, 1, 2, 2, 2]).to_csv(tmp_path / "a.csv", index=False)
    table(2, who="bert", room=1).to_csv(tmp_path / "b.csv", index=False)
    manifest = MANIFEST.replace("value = 4", 'column = "who"\n[scene]\ncolumn = "room"')
    _, found = opened(tmp_path, manifest)
    assert [(r.subject, r.scene, r.trial, len(r.streams["acc"].values)) for r in found] == [
        (3, 1, 0, 2),
        (1, 1, 0, 1),
        (1, 2, 0, 1),
        (3, 2, 0, 2),
        (2, 1, 0, 2),
    ]
    np.testing.assert_array_equal(found[3].streams["acc"].values[:, 0], [4, 5])
    assert [r.name for r in found] == ["a.csv", "a.csv#2", "a.csv#3", "a.csv#4", "b.csv"]


def test_subjects_of_one_number_stay_apart(tmp_path: Path) -> None:
    manifest = MANIFEST.replace("*.csv", "{subject}.csv").replace("[subject]\nvalue = 4\n", "")
    for name in ("S1", "S01", "S7"):
        table(2).to_csv(tmp_path / f"{name}.csv", index=False)
    _, found = opened(tmp_path, manifest)
    assert [(r.name, r.subject) for r in found] == [("S01.csv", 1), ("S1.csv", 2), ("S7.csv", 3)]
    (tmp_path / "S1.csv").unlink()
    _, found = opened(tmp_path, manifest)
    assert [(r.name, r.subject) for r in found] == [("S01.csv", 1), ("S7.csv", 7)]


@pytest.mark.parametrize(
    ("unit", "spellings"),
    [
        ("g", ["g", "G"]),
        ("m/s2", ["m/s^2", "m/s²", "m/s**2", "m s-2", "m·s⁻²", "M/S2"]),
        ("rad/s", ["rad/s", "rad/sec", "Rad/s"]),
        ("deg/s", ["°/s", "º/s", "dps", "DPS", "deg / s"]),
        ("uT", ["µT", "μT"]),
        ("gauss", ["Gauss"]),
        ("bpm", ["BPM"]),
        ("degC", ["°C", "℃", "C", "deg C", "Celsius"]),
        ("uS", ["µS", "μS"]),
        ("mV", ["mV"]),
        ("uV", ["µV"]),
        ("m", ["metres"]),
        ("mm", ["millimeters"]),
        ("dB", ["db"]),
        ("a.u.", ["A.U.", "au"]),
    ],
)
def test_units_have_one_name(unit: str, spellings: list[str]) -> None:
    assert {unit_name(s, "sensor") for s in spellings} == {unit}


def test_units_that_are_not_known_stay(tmp_path: Path) -> None:
    for text in ("UV", "lux", "mG", "MV", "m/s^3", "m", ""):
        assert unit_name(text, "sensor") == text
    assert unit_name("G", "wrist_mag") == "gauss"
    table(2).to_csv(tmp_path / "a.csv", index=False)
    for text, unit in (("m/s²", "m/s2"), ("G", "g"), ("furlongs", "furlongs")):
        dataset, _ = opened(tmp_path, MANIFEST.replace('"g"', f'"{text}"'))
        assert dataset.units == {"acc": unit}


TIMED = MANIFEST.replace('csv"', 'csv"\ntime = "t"\ntime_unit = "ms"')


def test_even_time_is_not_interpolated(tmp_path: Path) -> None:
    t = 1.7e12 + 20 * np.arange(20) + np.tile([0, 3], 10)
    table(20, t=t).to_csv(tmp_path / "a.csv", index=False)
    _, (recording,) = opened(tmp_path, TIMED)
    np.testing.assert_array_equal(recording.streams["acc"].values[:, 0], np.arange(20))


def test_uneven_time_with_a_gap(tmp_path: Path) -> None:
    t = np.r_[0:200:20, 1000:1200:20] + np.r_[np.zeros(9), 10, np.zeros(10)]
    table(20, t=t, ax=t).to_csv(tmp_path / "a.csv", index=False)
    _, (recording,) = opened(tmp_path, TIMED)
    x = recording.streams["acc"].values[:, 0]
    assert len(x) == 60
    sensed = np.isfinite(x)
    assert sensed[:10].all()
    assert not sensed[11:50].any()
    assert sensed[50:].all()
    np.testing.assert_allclose(x[sensed], 20 * np.flatnonzero(sensed), atol=1e-3)
    labels = steps(recording).values
    assert (labels[13:48] == UNLABELLED).all()
    assert labels[50:].tolist() == [0, 1] * 5


def test_pauses_and_restarts_begin_recordings(tmp_path: Path) -> None:
    t = np.r_[0:100:20, 50_000:50_100:20, 0:100:20]
    table(16, t=np.r_[t, 100]).to_csv(tmp_path / "a.csv", index=False)
    _, found = opened(tmp_path, TIMED)
    assert [len(r.streams["acc"].values) for r in found] == [5, 5, 6]
    assert [r.trial for r in found] == [0, 1, 2]


def test_dates(tmp_path: Path) -> None:
    dates = pd.date_range("2024-02-28 23:59:59.900", periods=20, freq="20ms")
    manifest = TIMED.replace('"ms"', '"date"')
    frame = table(20, t=dates)
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet")
    for kind in ("csv", "parquet"):
        _, (recording,) = opened(tmp_path, manifest.replace("csv", kind))
        np.testing.assert_array_equal(recording.streams["acc"].values[:, 0], np.arange(20))
    (tmp_path / "a.csv").write_text(frame.to_csv(index=False).replace("59.940", "soon"))
    with pytest.raises(CommunisError, match=r"a\.csv, line 4: the time stamp is missing"):
        opened(tmp_path, manifest)
    with pytest.raises(
        CommunisError, match=r"a\.parquet: files\.time_unit = 's' does not fit.*expected date"
    ):
        opened(tmp_path, manifest.replace("csv", "parquet").replace('"date"', '"s"'))


def test_slower_sensor_in_the_same_file(tmp_path: Path) -> None:
    heart = np.where(np.arange(150) % 50 == 25, 60.0 + np.arange(150), np.nan)
    table(150, hr=heart).to_csv(tmp_path / "a.csv", index=False)
    manifest = MANIFEST + '[modalities.heart]\ncolumns = ["hr"]\nrate = 1\nunit = "bpm"\n'
    _, (recording,) = opened(tmp_path, manifest)
    stream = recording.streams["heart"]
    assert stream.values.tolist() == [[85], [135], [185]]
    assert (stream.rate, stream.start) == (1, 0.5)


SEVERAL = """
[files]
time = "t"
[modalities.acc]
pattern = "{subject}/{session}-acc.csv"
columns = ["x"]
rate = 50
[modalities.hr]
pattern = "{subject}/{session}-hr.csv"
time = "when"
columns = ["bpm"]
rate = 1
[label]
pattern = "{subject}/{session}-acc.csv"
column = "act"
classes = [0, 1]
"""


def several(folder: Path) -> None:
    for subject in ("p1", "p2"):
        (folder / subject).mkdir()
        acc = pd.DataFrame({"t": 5 + np.arange(200) / 50, "x": np.arange(200.0), "act": 1})
        acc.to_csv(folder / subject / "7-acc.csv", index=False)
    hr = pd.DataFrame({"bpm": [60, 61, 62, 63], "when": [6, 7, 8, 9]})
    hr.to_csv(folder / "p1" / "7-hr.csv", index=False)


def test_sensors_in_different_files(tmp_path: Path) -> None:
    """They are joined in time; the heart rate that the second person lacks is NaN."""
    several(tmp_path)
    _, (one, two) = opened(tmp_path, SEVERAL)
    assert (one.subject, one.session, two.subject, two.session) == (1, 7, 2, 7)
    assert one.streams["hr"].values[:, 0].tolist() == [60, 61, 62, 63]
    assert (one.streams["hr"].start, one.streams["acc"].start) == (1.0, 0.0)
    assert two.streams["hr"].values.shape == (4, 1)
    assert np.isnan(two.streams["hr"].values).all()


def test_sensors_in_different_files_that_do_not_fit(tmp_path: Path) -> None:
    several(tmp_path)
    with pytest.raises(CommunisError, match="which must be the same in both"):
        opened(tmp_path, SEVERAL.replace("{session}-hr", "7-hr"))
    (tmp_path / "p1" / "8-acc.csv").write_text("x")
    with pytest.raises(CommunisError, match=r"7-acc\.csv and .*8-acc\.csv both match.*{trial}"):
        opened(tmp_path, SEVERAL.replace("{session}", "*"))
    (tmp_path / "p1" / "8-acc.csv").unlink()
    (tmp_path / "p1" / "9-hr.csv").write_text("bpm,when\n1,2\n")
    with pytest.raises(CommunisError, match=r"9-hr\.csv: the file .*acc.* is missing"):
        opened(tmp_path, SEVERAL)


@pytest.mark.parametrize(
    ("target", "task", "first"),
    [
        ('kind = "position"\ncolumns = ["ax", "ay"]', Localisation(2), [0, 10]),
        ('kind = "pose"\ncolumns = ["ax", "ay", "az"]', Pose(1), [0, 10, 20]),
        ('kind = "count"\ncolumns = ["n"]\nmost = 3', Counting(4), 2),
    ],
)
def test_targets(tmp_path: Path, target: str, task: object, first: object) -> None:
    table(4, n=[2, 0, np.nan, 3]).to_csv(tmp_path / "a.csv", index=False)
    manifest = MANIFEST.partition("[label]")[0] + f"[target]\n{target}\n[subject]\nvalue = 1\n"
    dataset, (recording,) = opened(tmp_path, manifest)
    assert dataset.task == task
    assert steps(recording).values[0].tolist() == first
    if isinstance(task, Counting):
        assert steps(recording).values.tolist() == [2, 0, UNLABELLED, 3]
        with pytest.raises(CommunisError, match=r"a\.csv, line 5: 3 is not a count from 0 to"):
            opened(tmp_path, manifest.replace("most = 3", "most = 2"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("ax", "aX"), r"a\.csv: no column 'aX'.*'ax', 'ay', 'az', 'activity'"),
        (("rate = 50", "rate = 0"), r"modalities\.acc\.rate: expected a positive"),
        (("rate = 50", 'rate = "50"'), r"modalities\.acc\.rate: expected a finite number"),
        (("rate = 50", "speed = 50"), r"unknown key modalities\.acc\.speed"),
        (("rate = 50\n", 'rate = 50\nkind = "x'), "communis.toml: .*line"),
        (
            ("modalities.acc", "modalities.my-acc"),
            r"modalities\.my-acc: .* letters, digits and _ only",
        ),
        (('["walk", "sit"]', '["walk", "run"]'), r"line 3: 'sit' is not one of label\.classes"),
        (('["walk", "sit"]', '["walk"]'), r"label\.classes: expected at least two"),
        (("value = 4", ""), "subject: set subject.column"),
        (("[label]", "[lable]"), "unknown key lable.*label"),
        (("*.csv", "*.parquet"), r"no file matches '\*\.parquet'"),
        (("*.csv", "{person}.csv"), r"{person} is not one of {subject}"),
        (("*.csv", "../*.csv"), "must be below"),
        (
            ('column = "activity"', ""),
            "label: expected one of label.column, {label} in.*found none",
        ),
        (('csv"', 'csv"\ndelimiter = ";"'), "no column 'ax'.*is ';' its delimiter"),
        (('csv"', 'csv"\ntime_unit = "h"'), r"files\.time_unit: 'h' is not one of"),
        (('csv"', 'csv"\nskip = -1'), r"files\.skip: expected 0 or more, got -1"),
        (('csv"', 'csv"\ngap = -1'), r"files\.gap: expected 0 or more, got -1"),
        (('csv"', 'csv"\npause = -1'), r"files\.pause: expected 0 or more, got -1"),
        (("modalities.acc", "modalities.type"), r"modalities\.type: models reserve this name"),
        (("modalities.acc", "modalities.keys"), r"modalities\.keys: .*call it keys_"),
        (
            ('"az"]', '"ax"]'),
            r"modalities\.acc\.columns: 'ax' is already in modalities\.acc\.columns",
        ),
        (
            ("[label]", '[modalities.up]\ncolumns = ["az"]\nrate = 50\n[label]'),
            r"modalities\.up\.columns: 'az' is already in modalities\.acc\.columns",
        ),
    ],
)
def test_bad_manifests(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    table(4).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(CommunisError, match=said) as caught:
        opened(tmp_path, MANIFEST.replace(*change))
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ax,ay,az,activity\n1,2,3,walk\n1,2,3\n", "line 3: 3 columns, expected 4"),
        ("ax,ay,az,activity\n1,2,3,walk\n1,x,3,sit\n", "line 3: 'x' in column 'ay' is not a num"),
        ("ax,ay,az,activity\n", "holds no rows"),
        ("", "empty"),
        ("ax,ax,ay,az,activity\n", "more than one column is called 'ax'"),
    ],
)
def test_bad_files(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(CommunisError, match=rf"a\.csv.*{said}"):
        opened(tmp_path, MANIFEST)


def test_bad_binary_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00a")
    with pytest.raises(CommunisError, match=r"a\.csv: not a readable text file"):
        opened(tmp_path, MANIFEST)
    for name, content in (("a.npy", b"junk"), ("a.parquet", b"PAR1 junk")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(CommunisError, match=f"{name}: not a readable"):
            opened(tmp_path, MANIFEST.replace("*.csv", name))
    np.save(tmp_path / "a.npy", np.zeros((2, 3, 4)))
    with pytest.raises(CommunisError, match=r"a\.npy: values of shape \(2, 3, 4\)"):
        opened(tmp_path, MANIFEST.replace("*.csv", "a.npy"))
    pd.DataFrame({c: ["x", "y"] for c in ("ax", "ay", "az", "activity")}).to_parquet(
        tmp_path / "a.parquet"
    )
    with pytest.raises(CommunisError, match=r"a\.parquet: column 'ax' does not hold numbers"):
        opened(tmp_path, MANIFEST.replace("*.csv", "a.parquet"))


def test_time_that_does_not_fit(tmp_path: Path) -> None:
    for t, said in (
        (np.arange(20) * 10, r"the time stamps give about 100 Hz, .*rate is 50"),
        (np.arange(20) // 8, "most time stamps are equal"),
        (np.r_[0:380:20, 350], r"line 21: time goes back by 0\.01 s"),
    ):
        table(20, t=t).to_csv(tmp_path / "a.csv", index=False)
        with pytest.raises(CommunisError, match=rf"a\.csv.*{said}"):
            opened(tmp_path, TIMED)


def test_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match=f"communis data init {tmp_path}"):
        Own(folder=str(tmp_path)).open()


# communis data init


def guessed(folder: Path, expected_checks: Sequence[str] = ()) -> tuple[Dataset, list[Recording]]:
    """The recordings by the manifest that was written; the CHECK remarks are those expected."""
    path, remarks = write_manifest(folder)
    assert path == folder / "communis.toml"
    checks = [r.partition(":")[0] for r in remarks if "CHECK" in r]
    assert sorted(checks) == sorted(f"CHECK {c}" for c in expected_checks), remarks
    dataset = Own(folder=str(folder)).open()
    return dataset, list(dataset.recordings)


def motion(rows: int = 100) -> dict[str, Any]:
    gravity = {"acc_x": 0.1, "acc_y": 0.2, "acc_z": 9.8}
    turning = {"gyro_x [rad/s]": 0.5, "gyro_y [rad/s]": 0.25, "gyro_z [rad/s]": 0.0}
    return {name: np.full(rows, value) for name, value in (gravity | turning).items()}


def test_init_one_file_with_everything(tmp_path: Path) -> None:
    heart = np.where(np.arange(100) % 25 == 0, 70.0, np.nan)
    frame = pd.DataFrame({"Timestamp": 1.7e12 + 40 * np.arange(100)} | motion() | {"hr": heart})
    frame["Activity"] = ["walk"] * 60 + ["sit"] * 40
    frame["user_id"] = ["al"] * 50 + ["bo"] * 50
    frame["note"] = [f"free text {i}" for i in range(100)]
    frame.to_csv(tmp_path / "all.csv", sep=";", decimal=",")
    dataset, found = guessed(tmp_path, ["unit", "unit"])
    assert dataset.units == {"acc": "m/s2", "gyro": "rad/s", "hr": "bpm"}
    assert dataset.labels == ("sit", "walk")
    assert [r.subject for r in found] == [1, 2]
    rates = {m: (s.rate, s.values.shape[1]) for m, s in found[0].streams.items()}
    assert rates == {"acc": (25, 3), "gyro": (25, 3), "hr": (1, 1)}
    assert steps(found[1]).values.tolist() == [1] * 10 + [0] * 40
    with pytest.raises(CommunisError, match="exists already; --force"):
        write_manifest(tmp_path)
    (tmp_path / "communis.toml").write_text("")
    assert write_manifest(tmp_path, force=True)[0].read_text()


def test_init_one_file_per_subject(tmp_path: Path) -> None:
    for name in ("anna", "bert"):
        frame = pd.DataFrame({"time_s": np.arange(100) / 64} | motion())
        frame["label"] = np.arange(100) // 34
        frame.to_csv(tmp_path / f"{name}.csv", index=False)
    dataset, found = guessed(tmp_path, ["subject", "unit"])
    assert [(r.subject, r.name) for r in found] == [(1, "anna.csv"), (2, "bert.csv")]
    assert found[0].streams["acc"].rate == 64
    assert dataset.labels == ("0", "1", "2")


def test_init_folder_per_subject_and_file_per_activity(tmp_path: Path) -> None:
    for subject in ("S01", "S02", "S10"):
        (tmp_path / subject).mkdir()
        for name in ("walk_1", "walk_2", "sit_1"):
            frame = pd.DataFrame({"t": np.arange(50) * 20, "ax": 0.0, "ay": 0.0, "az": 1.0})
            frame.to_csv(tmp_path / subject / f"{name}.csv", index=False)
    dataset, found = guessed(tmp_path, ["subject", "trial", "unit"])
    assert {(r.subject, r.target, r.trial) for r in found} == {
        (s, c, t) for s in (1, 2, 10) for c, t in ((1, 1), (1, 2), (0, 1))
    }
    assert dataset.labels == ("sit", "walk")
    assert dataset.units == {"acc": "g"}
    assert found[0].streams["acc"].rate == 50


def test_init_arrays(tmp_path: Path) -> None:
    for subject in (1, 2):
        values = np.c_[np.linspace(-1, 1, 60).reshape(20, 3), np.arange(20) // 10]
        np.save(tmp_path / f"subject_{subject}.npy", values)
    dataset, found = guessed(tmp_path, ["rate", "label", "unit"])
    assert [r.subject for r in found] == [1, 2]
    assert found[0].streams["sensor"].values.shape == (20, 3)
    assert steps(found[0]).values.tolist() == [0] * 10 + [1] * 10
    assert dataset.labels == ("0", "1")


def test_init_parquet_with_dates(tmp_path: Path) -> None:
    columns = {"time": pd.date_range("2024-01-01", periods=100, freq="10ms")} | motion()
    frame = pd.DataFrame(columns | {"activity": "sit", "session": 2})
    frame.loc[50:, "activity"] = "walk"
    frame.to_parquet(tmp_path / "data.parquet")
    _, (recording,) = guessed(tmp_path, ["subject", "unit"])
    assert recording.streams["acc"].rate == 100
    assert (recording.subject, recording.session) == (1, 2)


def test_init_file_per_sensor(tmp_path: Path) -> None:
    for subject in ("p1", "p2"):
        (tmp_path / subject).mkdir()
        for sensor, rate in (("acc", 50), ("gyro", 100), ("labels", 50)):
            time = np.arange(4 * rate) / rate
            frame = pd.DataFrame({"time": time, "x": 0.0, "y": 0.0, "z": 1.0})
            if sensor == "labels":
                frame = pd.DataFrame({"time": time, "activity": ["a", "b"] * (2 * rate)})
            frame.to_csv(tmp_path / subject / f"{sensor}.csv", index=False)
    _, found = guessed(tmp_path, ["subject", "unit", "unit"])
    assert [r.subject for r in found] == [1, 2]
    assert {m: s.rate for m, s in found[0].streams.items()} == {"acc": 50, "gyro": 100}
    assert steps(found[0]).values[:3].tolist() == [0, 1, 0]


def test_init_without_label_says_so(tmp_path: Path) -> None:
    pd.DataFrame({"time": np.arange(20) / 10} | motion(20)).to_csv(tmp_path / "a.csv", index=False)
    _, remarks = write_manifest(tmp_path)
    assert any("CHECK label: none was found" in r for r in remarks)
    assert any("cannot be read with it yet" in r for r in remarks)


def test_init_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match="no CSV, Parquet or NPY file"):
        write_manifest(tmp_path)
    with pytest.raises(CommunisError, match="no such folder"):
        write_manifest(tmp_path / "none")
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(CommunisError, match=r"a\.csv: empty"):
        write_manifest(tmp_path)


def test_init_leaves_out_columns_of_one_name(tmp_path: Path) -> None:
    rows = "".join(f"{i / 10},{i},1,0.5,{'ab'[i // 10]},,\n" for i in range(20))
    (tmp_path / "a.csv").write_text("time,x,x,hr (BPM),label,,\n" + rows)
    _, remarks = write_manifest(tmp_path)
    assert any("left out: 'x' (more than one column has this name), ''" in r for r in remarks)
    dataset = Own(folder=str(tmp_path)).open()
    (recording,) = dataset.recordings
    assert dataset.units == {"hr": "bpm"}
    assert recording.streams["hr"].values.tolist() == [[0.5]] * 20


def test_init_of_unusual_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    frame = pd.DataFrame({"x": [1.0, 2.0], "label": ["a", "b"]}, index=[4, 7])
    frame.iloc[:0].to_parquet(path)
    with pytest.raises(CommunisError, match=r"a\.parquet: holds no rows"):
        write_manifest(tmp_path)
    frame.to_parquet(path)
    _, found = guessed(tmp_path, ["rate", "unit", "subject"])  # the index is no sensor
    assert {m: s.values.tolist() for m, s in found[0].streams.items()} == {"x": [[1.0], [2.0]]}
    pq.write_table(pa.table({"x": [1.0, 2.0], "label": [[1], [2]]}), path)
    with pytest.raises(CommunisError, match=r"a\.parquet: column 'label' does not hold words"):
        write_manifest(tmp_path, force=True)
    twice = pa.table([pa.array([1.0, 2.0])] * 2 + [pa.array(["a", "b"])], ["x", "x", "label"])
    pq.write_table(twice, path)
    _, remarks = write_manifest(tmp_path, force=True)
    assert any("left out: 'x' (more than one column has this name)" in r for r in remarks)
    by_number = MANIFEST.replace("*.csv", "*.parquet").replace('"ax", "ay", "az"', "1")
    with pytest.raises(
        CommunisError, match=r"a\.parquet: .*\"x\" exists 2 times.*have the same name"
    ):
        opened(tmp_path, by_number.replace('"activity"', '"label"'))
