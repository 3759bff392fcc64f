"""Four layouts as people have them: the first manifest is right, or the line is marked, and a run
with it gets to a report."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pytest

from communis.cli.main import main
from communis.core.streams import Streams
from communis.data.own.guess import write_manifest
from communis.data.recordings.windows import Windows
from communis.data.sources.own import Own
from communis.results.finished import read
from tests.unit.data.own.layouts import ACTIVITIES, LAYOUTS, PEOPLE, SECONDS


def written(folder: Path, layout: str) -> tuple[list[str], list[str]]:
    """The lines of the first manifest, and the remarks."""
    LAYOUTS[layout](folder)
    path, remarks = write_manifest(folder)
    return path.read_text("utf-8").splitlines(), remarks


def windows(folder: Path) -> Windows:
    return Own(folder=str(folder), window=1.0).load(Streams())


def marked(lines: list[str]) -> list[str]:
    return [line.partition("  #")[0] for line in lines if "# CHECK" in line]


def test_files_per_subject_with_side_tables(tmp_path: Path) -> None:
    lines, remarks = written(tmp_path, "side tables")
    assert marked(lines) == [
        'pattern = "{subject}.csv"',
        'exclude = ["devices.csv", "participants.csv"]',
        'unit = "g"',
    ]
    assert 'time = "timestamp"' in lines
    assert 'time_unit = "ms"' in lines
    assert any("participants.csv not read: a side table (subject, age" in r for r in remarks)
    assert any("notes.txt not read" in r for r in remarks)
    made = windows(tmp_path)
    assert made.names["subject"] == {1: "anna", 2: "bert", 3: "carla"}
    assert made.labels == tuple(ACTIVITIES)
    assert len(made) == len(PEOPLE) * 6 * SECONDS


def test_one_file_per_sensor_and_trial(tmp_path: Path) -> None:
    lines, _ = written(tmp_path, "file per sensor and trial")
    assert marked(lines) == [
        '# names of files: "{subject}/{label}_{trial}_{sensor}.csv"',
        'unit = "a.u."',
        'unit = "a.u."',
    ]
    manifest = tomllib.loads("\n".join(lines))
    assert {name: part["rate"] for name, part in manifest["modalities"].items()} == {
        "acc": 50,
        "gyro": 100,
    }
    made = windows(tmp_path)
    assert made.names["subject"] == {1: "S01", 2: "S02", 3: "S03"}
    assert made.labels == ("sit", "stairs_up", "walk")
    assert len(made) == len(PEOPLE) * 6 * SECONDS
    assert np.unique(made.trial).tolist() == [1, 2]
    assert all(flags.all() for flags in made.present.values())


def test_labels_in_intervals(tmp_path: Path) -> None:
    lines, remarks = written(tmp_path, "labels in intervals")
    assert marked(lines) == ['pattern = "data/{subject}.csv"', 'unit = "g"', "relative = true"]
    assert 'pattern = "labels/{subject}_labels.csv"' in lines
    assert "CHECK label: the intervals seem to count from the first row of a recording" in remarks
    made = windows(tmp_path)
    assert made.labels == tuple(ACTIVITIES)
    assert len(made) == pytest.approx(len(PEOPLE) * 6 * (SECONDS - 1), abs=6)


def test_bursts(tmp_path: Path) -> None:
    lines, _ = written(tmp_path, "bursts")
    assert marked(lines) == [
        'pattern = "{subject}/{label}_{trial}.csv"',
        'batches = "first"',
        'unit = "g"',
    ]
    assert "rate = 50" in lines
    made = windows(tmp_path)
    assert made.labels == ("sit", "stairs-up", "walk")
    assert len(made) == pytest.approx(len(PEOPLE) * 6 * SECONDS, rel=0.1)
    assert np.isfinite(made.inputs["acc"]).all()


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_gets_to_a_report(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the manifest as it is written first. The report calls clients by their names."""
    data = tmp_path / "experiment" / "recordings"
    data.mkdir(parents=True)
    LAYOUTS[layout](data)
    monkeypatch.chdir(tmp_path)
    call(monkeypatch, "data", "init", str(data))
    settings = '[data]\nname = "own"\nfolder = "recordings"\nwindow = 1.0\n[run]\nrounds = 2\n'
    (tmp_path / "experiment" / "mine.toml").write_text(f'name = "mine"\n{settings}')
    call(monkeypatch, "data", "doctor", "experiment/mine.toml")
    call(monkeypatch, "run", "experiment/mine.toml")
    name = "S01" if layout == "file per sensor and trial" else "anna"
    folder = tmp_path / "runs" / "mine-fedavg"
    assert read(folder).names[0] == name
    assert f"{name}: acc" in (folder / "report.html").read_text("utf-8")


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", ["communis", *arguments])
    code = None
    try:
        main()
    except SystemExit as end:
        code = end.code
    assert not code, arguments
