"""The first manifest: names that differ in length, formats of text, tables and JSON files beside
the recordings, many files; what comes from names is quoted."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from communis.core.errors import CommunisError
from communis.data.own.filenames import Names, split
from communis.data.own.guess import write_manifest
from communis.data.sources.own import Own


def recorded(folder: Path, *names: str, rows: int = 50, **columns: Any) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        time = np.arange(rows) / 10
        frame = pd.DataFrame({"time_s": time, "acc": np.sin(time)} | columns)
        frame.to_csv(path, index=False)


def manifest(folder: Path) -> tuple[dict[str, Any], list[str]]:
    path, remarks = write_manifest(folder, force=True)
    return tomllib.loads(path.read_text("utf-8")), remarks


def pattern(*files: str, labelled: bool = False) -> Names:
    return split(files, [0] * len(files), set(), labelled)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (("S01/walk_1.csv", "S02/sit_2.csv"), "{subject}/{label}_{trial}.csv"),
        (("a1t1.csv", "a2t1.csv", "a2t2.csv"), "a{label}t{trial}.csv"),
        (
            (
                "X_Subject_01_walk_2016-06-13_20-20-29.csv",
                "X_Subject_02_sit_2016-06-14_09-02-11.csv",
            ),
            "X_Subject_{subject}_{label}_????-??-??_??-??-??.csv",
        ),
        (("p1_stairs_up_1.csv", "p2_walk_2.csv"), "{subject}_{label}_{trial}.csv"),
        (("p1_walk_wrist.csv", "p1_walk_hip.csv"), "p1_walk_{sensor}.csv"),
        (("day1/P=3.csv", "day2/P=4.csv"), "{session}/P={subject}.csv"),
        (("small-room/s1.csv", "large-room/s2.csv"), "{scene}-room/{subject}.csv"),
        (("sit-20240101/acc.csv", "walk-20240203/acc.csv"), "{label}-????????/acc.csv"),
        (("one.csv",), "one.csv"),
    ],
)
def test_names_of_files_are_split(files: tuple[str, ...], expected: str) -> None:
    assert pattern(*files).pattern == expected


def test_names_are_not_split_where_they_say_nothing() -> None:
    known = pattern("anna.csv", "bert.csv", labelled=True)
    assert (known.pattern, known.slots[0].sure) == ("{subject}.csv", False)
    deep = pattern("a/1.csv", "b/c/1.csv", "2.csv")
    assert deep.pattern == "**/*.csv"
    most = pattern(*(f"s{i}.csv" for i in range(9)), "old/s1.csv")
    assert (most.pattern, most.left) == ("{subject}.csv", ("old/s1.csv",))


def test_headers_in_comments_and_lines_above(tmp_path: Path) -> None:
    rows = "".join(f"{i / 10},{i % 7}.5,{i % 3}.25\n" for i in range(40))
    for above, key, value in (
        ("# by a logger\n# time_s,ax,ay\n", "skip", 1),
        ("% a\n%, b, c\n;;\n\n", "comment", "%"),
        ("made by a logger\n\nversion 2\ntime_s,ax,ay\n", "skip", 3),
    ):
        (tmp_path / "s1.csv").write_text(above + rows)
        found, _ = manifest(tmp_path)
        assert found["files"][key] == value
        (tmp_path / "communis.toml").write_text(
            (tmp_path / "communis.toml").read_text().replace("classes = []", "classes = [0, 1]")
            + "[label.files]\n0 = ['s1.csv']\n"
        )
        source = Own(folder=str(tmp_path))
        if key == "skip":
            (recording,) = source.open().recordings
            assert recording.streams["acc"].values[:3, 1].tolist() == [0.25, 1.25, 2.25]


def test_a_table_with_the_classes_of_all_files(tmp_path: Path) -> None:
    recorded(tmp_path, "r/s1_1.csv", "r/s1_2.csv", "r/s2_1.csv")
    table = {"file": ["s1_1.csv", "s1_2.csv", "s2_1.csv"], "activity": ["walk", "sit", "walk"]}
    pd.DataFrame(table).to_csv(tmp_path / "labels.csv", index=False)
    found, _ = manifest(tmp_path)
    assert found["label"]["intervals"] == {
        "pattern": "labels.csv",
        "column": "activity",
        "file": "file",
    }
    assert [r.target for r in Own(folder=str(tmp_path)).open().recordings] == [1, 0, 1]


@pytest.mark.parametrize("each", [True, False])
def test_classes_in_json_files(tmp_path: Path, each: bool) -> None:
    names = ("s1_1", "s1_2", "s2_1")
    recorded(tmp_path, *(f"{name}.csv" for name in names))
    about = {name: {"activity": word} for name, word in zip(names, "aba", strict=True)}
    if each:
        for name, content in about.items():
            (tmp_path / f"{name}.json").write_text(json.dumps(content))
    else:
        (tmp_path / "about.json").write_text(json.dumps(about))
    found, _ = manifest(tmp_path)
    place = "{subject}_{trial}.json" if each else "about.json"
    assert found["label"]["json"] == {"pattern": place, "key": "activity"}
    assert [r.target for r in Own(folder=str(tmp_path)).open().recordings] == [0, 1, 0]


def test_several_files_are_looked_at(tmp_path: Path) -> None:
    """Rates that differ are marked; a file that cannot be read is named, and does no more harm."""
    recorded(tmp_path, "s1.csv", "s2.csv", "s3.csv", activity="walk")
    frame = pd.DataFrame({"time_s": np.arange(90) / 25, "acc": 1.0, "activity": "sit"})
    frame.to_csv(tmp_path / "s4.csv", index=False)
    (tmp_path / "s5.csv").write_bytes(b"\xff\xfe\x00")
    _, remarks = manifest(tmp_path)
    assert "CHECK rate: files have 10 to 25 Hz" in remarks
    said = "CHECK files: 1 are no tables that can be read: s5.csv"
    assert any(remark.startswith(said) for remark in remarks)
    assert 'exclude = ["s5.csv"]' in (tmp_path / "communis.toml").read_text()


def test_names_of_strangers_are_quoted(tmp_path: Path) -> None:
    """Names of files and columns cannot add lines to the manifest."""
    evil = 'x"]\n[run]\nname = "y'
    recorded(tmp_path, "s1\n[evil]_acc.csv", "s2\n[evil]_acc.csv", **{evil: 1.0, "label": "a"})
    found, _ = manifest(tmp_path)
    assert set(found) <= {"files", "modalities", "label", "subject"}


def test_other_formats_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.mat").write_bytes(b"x")
    (tmp_path / "Readme.txt").touch()
    with pytest.raises(CommunisError, match=r"no CSV.*files of \.mat, \.txt: write their arrays"):
        write_manifest(tmp_path)


@pytest.mark.parametrize("name", ["S{i:03d}/walk.csv", "accelerometer-{i}{odd}.csv"])
def test_work_is_proportional_to_the_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Calls are counted: every file's head is read once or twice, and few files in depth."""
    counts = []
    for size in (20, 80):
        calls = 0
        place = tmp_path / str(size)
        names = [name.format(i=i, odd="_x" * (i % 3)) for i in range(size)]
        recorded(place, *names, rows=5, label="a")

        def counted(what: str, done: int, total: int) -> None:
            nonlocal calls
            calls += 1
            assert 0 <= done <= total

        write_manifest(place, progress=counted)
        counts.append(calls)
    assert counts[1] <= 4 * counts[0] + 10


def test_results_can_be_anonymous(tmp_path: Path) -> None:
    recorded(tmp_path, "anna.csv", "bert.csv", label=["a"] * 25 + ["b"] * 25)
    write_manifest(tmp_path, anonymous=True)
    assert tomllib.loads((tmp_path / "communis.toml").read_text())["anonymous"] is True
    assert all(not r.names for r in Own(folder=str(tmp_path)).open().recordings)
    write_manifest(tmp_path, force=True)
    named = [r.names for r in Own(folder=str(tmp_path)).open().recordings]
    assert named == [{"subject": "anna"}, {"subject": "bert"}]


def test_two_parts_of_the_names_tell_sensors(tmp_path: Path) -> None:
    """A device and a sensor, each twice in the path; columns without names, one of them is time."""
    rng = np.random.default_rng(0)
    for device in ("phone", "watch"):
        for sensor in ("accel", "gyro"):
            for subject in (1600, 1601):
                path = tmp_path / "raw" / device / sensor / f"data_{subject}_{sensor}_{device}.txt"
                path.parent.mkdir(parents=True, exist_ok=True)
                time = 252_207_666_810_782 + 50_000_000 * np.arange(60)
                frame = pd.DataFrame({"t": time, "x": rng.normal(size=60), "y": ["A", "B"] * 30})
                frame.insert(0, "who", subject)
                frame.to_csv(path, index=False, header=False)
    found, remarks = manifest(tmp_path)
    assert {n: (p["rate"], p["columns"]) for n, p in found["modalities"].items()} == {
        f"{device}_{sensor}": (20, [2])
        for device in ("phone", "watch")
        for sensor in ("accel", "gyro")
    }
    assert found["modalities"]["watch_gyro"]["pattern"] == (
        "raw/watch/gyro/data_{subject}_gyro_watch.txt"
    )
    assert (found["files"]["time"], found["files"]["time_unit"]) == (1, "ns")
    assert "CHECK time: column 1 is a guess: it rises in even steps" in remarks
    assert found["label"]["column"] == 3
    source = Own(folder=str(tmp_path)).open()
    assert [r.names for r in source.recordings] == [{"subject": "1600"}, {"subject": "1601"}]


def test_recordings_told_apart_by_dates_are_joined(tmp_path: Path) -> None:
    """What question marks stand for must agree, as the values in braces."""
    folders = ("walk-2023-05-01_10-00-00", "walk-2023-05-02_11-30-00", "sit-2023-05-03_09-10-00")
    recorded(tmp_path, *(f"{name}/{s}.csv" for name in folders for s in ("acc", "gyro")))
    found, _ = manifest(tmp_path)
    place = "{label}-????-??-??_??-??-??/acc.csv"
    assert found["modalities"]["acc"]["pattern"] == place
    recordings = list(Own(folder=str(tmp_path)).open().recordings)
    assert [r.target for r in recordings] == [0, 1, 1]
    assert all(set(r.streams) == {"acc", "gyro"} for r in recordings)
