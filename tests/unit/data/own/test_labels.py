"""Labels of your own files: merged, from file names, from JSON files and from intervals; files that
are left out; names of subjects."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.data.recordings.recording import UNLABELLED, Recording, Stream
from communis.data.sources.own import Own

HEAD = """
[files]
pattern = "{subject}_{trial}.csv"
time = "t"
[modalities.acc]
columns = ["x"]
rate = 10
unit = "g"
"""


def recorded(folder: Path, *names: str, seconds: float = 4.0, begin: float = 0.0) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        time = begin + np.arange(round(10 * seconds)) / 10
        pd.DataFrame({"t": time, "x": np.sin(time)}).to_csv(path, index=False)


def opened(folder: Path, manifest: str) -> list[Recording]:
    (folder / "communis.toml").write_text(manifest, "utf-8")
    return list(Own(folder=str(folder)).open().recordings)


def classes(recording: Recording) -> list[int]:
    """The classes at every second."""
    assert isinstance(recording.target, Stream)
    rate = round(recording.target.rate)
    return np.asarray(recording.target.values)[::rate].tolist()


def test_values_are_merged_to_a_class(tmp_path: Path) -> None:
    recorded(tmp_path, "s1_slow.csv", "s1_fast.csv", "s1_sit.csv", "s1_sat.csv")
    manifest = HEAD.replace("trial", "label") + (
        '[label]\nclasses = ["walk", "sit"]\nignore = ["sat"]\n'
        '[label.merge]\nwalk = ["slow", "fast"]\n'
    )
    found = opened(tmp_path, manifest)
    assert {r.name: r.target for r in found} == {
        "s1_slow.csv": 0,
        "s1_fast.csv": 0,
        "s1_sit.csv": 1,
    }
    for merge, said in (
        ('run = ["slow"]', r"label\.merge\.run: not one of label\.classes \(walk, sit\)"),
        ('walk = ["sit"]', r"label\.merge\.walk: 'sit' is one of label\.classes"),
        ('walk = ["slow"]\nsit = ["slow"]', r"label\.merge: 'slow' is in walk and in sit"),
        ('walk = ["slow"]', r"s1_fast\.csv: 'fast' is not one of .*label\.merge"),
    ):
        with pytest.raises(CommunisError, match=said):
            opened(tmp_path, manifest.replace('walk = ["slow", "fast"]', merge))


def test_classes_from_patterns_of_names(tmp_path: Path) -> None:
    recorded(tmp_path, "s1_W01.csv", "s1_W02.csv", "s1_S01.csv", "s1_calibration.csv")
    manifest = HEAD + (
        '[label]\nclasses = ["walk", "sit"]\n'
        '[label.files]\nwalk = ["*_W*.csv"]\nsit = ["s1_S*.csv"]\n'
    )
    with pytest.raises(CommunisError, match=r"s1_calibration\.csv: no pattern of label\.files"):
        opened(tmp_path, manifest)
    manifest = manifest.replace('t"\n', 't"\nexclude = ["*calibration*"]\n', 1)
    found = opened(tmp_path, manifest)
    assert {r.name: r.target for r in found} == {"s1_W01.csv": 0, "s1_W02.csv": 0, "s1_S01.csv": 1}
    with pytest.raises(CommunisError, match=r"has it under walk and sit"):
        opened(tmp_path, manifest.replace("s1_S*", "s1_*"))
    with pytest.raises(CommunisError, match=r"label\.files '\.\./a': files must be below"):
        opened(tmp_path, manifest.replace("s1_S*.csv", "../a"))


def test_files_are_left_out(tmp_path: Path) -> None:
    """A pattern without a slash is one of names in any folder."""
    recorded(tmp_path, "a/1.csv", "a/old.csv", "b/1.csv", "raw/1.csv", "raw/b/1.csv")
    manifest = HEAD.replace("{subject}_{trial}", "**/*") + (
        '[label]\nclasses = ["a", "b"]\n[label.files]\na = ["a/*"]\nb = ["*"]\n[subject]\nvalue = 1'
    )
    for exclude, left in (
        ('"old.csv", "raw/"', ["a/1.csv", "b/1.csv"]),
        ('"a/", "raw/*.csv"', ["b/1.csv", "raw/b/1.csv"]),
        ('"a/*", "**/b/1.csv"', ["raw/1.csv"]),
    ):
        changed = manifest.replace('b = ["*"]', 'b = ["b/*", "raw/"]')
        changed = changed.replace('t"\n', f't"\nexclude = [{exclude}]\n', 1)
        assert [r.name for r in opened(tmp_path, changed)] == left
    with pytest.raises(CommunisError, match=r"files\.exclude '/etc/x': files must be below"):
        opened(tmp_path, manifest.replace('t"\n', 't"\nexclude = ["/etc/x"]\n', 1))


def test_classes_from_one_json_file(tmp_path: Path) -> None:
    """Keys are paths or names, with or without the ending."""
    recorded(tmp_path, "s1_1.csv", "s1_2.csv", "s2_1.csv")
    manifest = HEAD + '[label]\nclasses = ["walk", "sit"]\n[label.json]\npattern = "labels.json"\n'
    place = tmp_path / "labels.json"
    place.write_text(json.dumps({"s1_1.csv": "walk", "s1_2": "sit", "s2_1": "walk"}))
    assert [r.target for r in opened(tmp_path, manifest)] == [0, 1, 0]
    nested = {name: {"what": {"class": "sit"}} for name in ("s1_1", "s1_2", "s2_1")}
    place.write_text(json.dumps(nested))
    keyed = manifest + 'key = "what.class"\n'
    assert [r.target for r in opened(tmp_path, keyed)] == [1, 1, 1]
    for content, said in (
        ({"s1_1": "walk"}, r"labels\.json: has no entry 's1_2\.csv'"),
        (nested, r"no text and no number; say where it is with label\.json\.key"),
        (["walk"], "expected an object whose keys are names"),
        ({"s1_1": "run"}, "'run' is not one of"),
    ):
        place.write_text(json.dumps(content))
        with pytest.raises(CommunisError, match=said):
            opened(tmp_path, manifest)
    place.write_text("[" * 100_000)
    with pytest.raises(CommunisError, match=r"labels\.json: not a readable JSON file"):
        opened(tmp_path, manifest)
    place.unlink()
    with pytest.raises(CommunisError, match=r"0 files match 'labels\.json', expected one"):
        opened(tmp_path, manifest)


def test_classes_from_a_json_file_of_every_recording(tmp_path: Path) -> None:
    recorded(tmp_path, "s1_1.csv", "s1_2.csv")
    (tmp_path / "s1_1.json").write_text('{"activity": 7}')
    manifest = HEAD + (
        "[label]\nclasses = [7, 8]\n"
        '[label.json]\npattern = "{subject}_{trial}.json"\nkey = "activity"\n'
    )
    with pytest.raises(CommunisError, match=r"s1_2\.csv: no file with its labels matches"):
        opened(tmp_path, manifest)
    (tmp_path / "s1_2.json").write_text('{"activity": 8}')
    assert [r.target for r in opened(tmp_path, manifest)] == [0, 1]
    with pytest.raises(CommunisError, match=r"s1_1\.json: no 'what' for .*s1_1\.csv"):
        opened(tmp_path, manifest.replace('"activity"', '"what"'))


INTERVALS = (
    HEAD
    + """
[label]
classes = ["walk", "sit"]
[label.intervals]
pattern = "{subject}_{trial}_labels.csv"
start = "start"
end = "end"
"""
)


def test_classes_from_intervals_of_every_recording(tmp_path: Path) -> None:
    recorded(tmp_path, "s1_1.csv", "s2_1.csv", begin=100)
    text = "label,start,end\nsit,102,104\nwalk,100,101\n"
    (tmp_path / "s1_1_labels.csv").write_text(text)
    (tmp_path / "s2_1_labels.csv").write_text("label,start,end\n")
    with pytest.raises(CommunisError, match=r"s2_1_labels\.csv: holds no rows"):
        opened(tmp_path, INTERVALS)
    (tmp_path / "s2_1_labels.csv").write_text("label,start,end\nwalk,0,101\nwalk,101,500\n")
    one, two = opened(tmp_path, INTERVALS)
    assert classes(one) == [0, UNLABELLED, 1, 1]
    assert classes(two) == [0, 0, 0, 0]
    rest = INTERVALS.replace('"sit"]', '"sit", "none"]') + 'rest = "none"\n'
    assert classes(opened(tmp_path, rest)[0]) == [0, 2, 1, 1]


def test_intervals_in_other_units_from_the_first_row(tmp_path: Path) -> None:
    recorded(tmp_path, "s1_1.csv", begin=100)
    (tmp_path / "s1_1_labels.csv").write_text("label;start;end\nsit;1000;2000\nwalk;2000;4000\n")
    manifest = INTERVALS + 'unit = "ms"\nrelative = true\ndelimiter = ";"\n'
    (one,) = opened(tmp_path, manifest)
    assert classes(one) == [UNLABELLED, 1, 0, 0]


def test_intervals_of_all_recordings_in_one_table(tmp_path: Path) -> None:
    recorded(tmp_path, "s1_1.csv", "s1_2.csv", "s2_1.csv")
    manifest = INTERVALS.replace("{subject}_{trial}_labels", "labels") + 'file = "recording"\n'
    table = "recording,label,start,end\ns1_1.csv,sit,0,2\ns1_2,walk,1,2\ns1_1.csv,walk,2,9\n"
    (tmp_path / "labels.csv").write_text(table)
    (tmp_path / "communis.toml").write_text(manifest)
    # Windows are cut again when the table changes.
    assert tmp_path / "labels.csv" in Own(folder=str(tmp_path)).files()
    found = [classes(r) for r in opened(tmp_path, manifest)]
    none = UNLABELLED
    assert found == [[1, 1, 0, 0], [none, 0, none, none], [none] * 4]
    whole = manifest.replace('start = "start"\nend = "end"\n', "")
    with pytest.raises(CommunisError, match=r"labels\.csv, line 2: several classes for .*s1_1"):
        opened(tmp_path, whole)
    (tmp_path / "labels.csv").write_text("recording,label\ns1_1,sit\ns1_2,walk\n")
    with pytest.raises(CommunisError, match=r"labels\.csv: has no entry 's2_1\.csv'"):
        opened(tmp_path, whole)
    (tmp_path / "labels.csv").write_text("recording,label\ns1_1,sit\ns1_2,walk\ns2_1,sit\n")
    assert [r.target for r in opened(tmp_path, whole)] == [1, 0, 1]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("sit,2,1", "line 2: the interval ends before it begins"),
        ("sit,0,2\nwalk,1,3", "line 3: the interval overlaps with one of another class"),
        ("run,0,2", "line 2: 'run' is not one of label"),
        (",0,2", "line 2: no class in 'label'"),
        ("sit,,2", "line 2: the time stamp is missing"),
    ],
)
def test_bad_intervals(tmp_path: Path, table: str, said: str) -> None:
    recorded(tmp_path, "s1_1.csv")
    (tmp_path / "s1_1_labels.csv").write_text(f"label,start,end\n{table}\n")
    with pytest.raises(CommunisError, match=said):
        opened(tmp_path, INTERVALS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("{trial}_labels", "{session}_labels"), r"label\.intervals\.pattern .*{session}.*must be"),
        (('end = "end"\n', ""), "expected both of start and end"),
        (("{subject}_{trial}_labels", "labels"), "one table for all recordings needs `file`"),
        (("{subject}_{trial}_l", "../l"), "files must be below"),
        (('"sit"]', '"sit"]\ncolumn = "y"'), r"found label\.column and label\.intervals"),
    ],
)
def test_bad_tools(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    recorded(tmp_path, "s1_1.csv")
    with pytest.raises(CommunisError, match=said):
        opened(tmp_path, INTERVALS.replace(*change))


def test_subjects_keep_their_names(tmp_path: Path) -> None:
    recorded(tmp_path, "anna_1.csv", "bo\x1b[31m_1.csv", seconds=8)
    manifest = HEAD + '[label]\nclasses = [1, 2]\n[label.files]\n1 = ["anna*"]\n2 = ["bo*"]\n'
    (tmp_path / "communis.toml").write_text(manifest)
    source = Own(folder=str(tmp_path), window=1.0)
    for _ in range(2):  # cut, and from the cache
        windows = source.load(Streams())
        assert windows.names == {"subject": {1: "anna", 2: "bo\\x1b[31m"}}
    (tmp_path / "communis.toml").write_text("anonymous = true\n" + manifest)
    assert source.load(Streams()).names == {}
