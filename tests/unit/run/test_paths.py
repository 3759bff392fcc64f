"""Paths in a configuration: beside its file, else in the working folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from communis.run import reading

TEXT = """
[data]
name = "own"
folder = "recordings"
[fleet]
profiles = "devices.toml"
weights = "random"
[grid.D.one]
data.folder = "other"
[grid.D.two]
run.rounds = 3
"""


def test_paths_are_searched_beside_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "experiment"
    (place / "recordings").mkdir(parents=True)
    (place / "other").mkdir()
    (tmp_path / "devices.toml").touch()
    (place / "mine.toml").write_text(TEXT)
    monkeypatch.chdir(tmp_path)
    table, _, _ = reading.read("experiment/mine.toml", ["data.window=4"])
    assert table["data"]["folder"] == "experiment/recordings"
    assert table["grid"]["D"]["one"]["data"]["folder"] == "experiment/other"
    assert table["fleet"] == {"profiles": "devices.toml", "weights": "random"}
    table, _, _ = reading.read("experiment/mine.toml", ["data.folder=recordings"])
    assert table["data"]["folder"] == "recordings"  # of the command line
    monkeypatch.chdir(place)
    table, _, _ = reading.read("mine.toml")
    assert Path(table["data"]["folder"]) == Path("recordings")
