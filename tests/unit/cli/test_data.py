"""The data part of the command line as a user meets it."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import numpy as np
import pytest

from communis.fleet.availability.trace import Trace
from tests.unit.cli.test_main import call

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """Somebody's own recordings: two people, two activities, 50 Hz, 1 g at rest."""
    folder = tmp_path / "mine"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for person in ("ann", "bob"):
        rows = ["time,acc_x,acc_y,acc_z,activity"]
        for i in range(3000):
            x, y, z = rng.normal((0, 0, 1), 0.004)
            rows.append(f"{i / 50:.2f},{x:.4f},{y:.4f},{z:.4f},{'sit' if i < 1500 else 'walk'}")
        (folder / f"{person}.csv").write_text("\n".join(rows) + "\n")
    return folder


def test_list_says_what_is_here_and_under_which_terms(monkeypatch: Patch, capsys: Capture) -> None:
    assert call(monkeypatch, "data", "list", "--json") == 0
    found = {e["dataset"]: e for e in json.loads(capsys.readouterr().out)["datasets"]}
    assert {"pamap2", "mhealth", "usc_had", "opportunity", "realworld", "sleep_edf"} <= set(found)
    assert {"mmfi", "reli11d", "deepsense", "wifi_csi", "dsads", "utd_mhad", "own"} <= set(found)
    assert all(entry["licence"] and entry["what"] for entry in found.values())
    assert found["synthetic"]["here"] == "generated"
    assert found["pamap2"]["here"] == "no"


def test_show_tells_settings_with_their_meaning(monkeypatch: Patch, capsys: Capture) -> None:
    assert call(monkeypatch, "data", "show", "usc_had") == 0
    text = capsys.readouterr().out
    assert "data.split" in text
    assert "length of a window in seconds" in text
    assert "licence:" in text
    assert call(monkeypatch, "data", "show", "usc_hat") == 2
    assert "did you mean 'usc_had'" in capsys.readouterr().err


def test_own_recordings_from_init_to_doctor_to_preview(
    recordings: Path, monkeypatch: Patch, capsys: Capture, tmp_path: Path
) -> None:
    assert call(monkeypatch, "data", "doctor", str(recordings)) == 2
    assert "communis data init" in capsys.readouterr().err
    assert call(monkeypatch, "data", "init", str(recordings)) == 0
    assert "wrote" in capsys.readouterr().out
    assert call(monkeypatch, "data", "init", str(recordings)) == 2  # never written over
    capsys.readouterr()
    assert call(monkeypatch, "data", "doctor", str(recordings), "--set", "data.window=2") == 0
    text = capsys.readouterr().out
    assert "1.00 g at rest" in text
    assert "no errors" in text
    page = tmp_path / "page.html"
    arguments = ["--client", "1", "--set", "data.window=2", "-o", str(page)]
    assert call(monkeypatch, "data", "preview", str(recordings), *arguments) == 0
    assert "bob: acc" in capsys.readouterr().out
    assert "<svg" in page.read_text("utf-8")


def test_the_doctor_exits_with_one_on_errors(
    recordings: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    call(monkeypatch, "data", "init", str(recordings))
    capsys.readouterr()
    arguments = ["--set", "data.split=leaky", "--set", "data.window=2"]
    assert call(monkeypatch, "data", "doctor", str(recordings), *arguments) == 1
    assert "x leakage" in capsys.readouterr().out
    (recordings / "bob.csv").write_text("time,acc_x,acc_y,acc_z,activity\n0.0,1,nonsense,0,sit\n")
    assert call(monkeypatch, "data", "doctor", str(recordings), "--json") == 1
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert said[-1]["errors"] == 1
    assert any("bob.csv" in entry.get("text", "") for entry in said)


def test_what_is_neither_dataset_nor_folder(monkeypatch: Patch, capsys: Capture) -> None:
    assert call(monkeypatch, "data", "doctor", "usc_hat") == 2
    assert "did you mean 'usc_had'" in capsys.readouterr().err


def test_an_official_folder_is_recognised(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    place = tmp_path / "DSADS" / "data" / "a01" / "p1"
    place.mkdir(parents=True)
    (place / "s01.txt").write_text("1,2,3\n")
    assert call(monkeypatch, "data", "doctor", str(tmp_path / "DSADS")) == 1
    text = capsys.readouterr().out
    assert "s01.txt" in text
    assert "expected 45" in text


def test_fetch_says_how_where_the_owner_wants_to_be_asked(
    monkeypatch: Patch, capsys: Capture
) -> None:
    assert call(monkeypatch, "data", "fetch", "mmfi") == 1
    text = capsys.readouterr().out
    assert "communis data fetch mmfi --from FILE" in text
    assert "https://" in text


def test_fetch_takes_an_archive_and_refuses_a_broken_one(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.setenv("COMMUNIS_DATA", str(tmp_path / "home"))
    source = tmp_path / "USC-HAD" / "Subject1"
    source.mkdir(parents=True)
    (source / "a1t1.mat").write_bytes(b"x")
    archive = tmp_path / "usc.tar.xz"
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(tmp_path / "USC-HAD", "USC-HAD")
    assert call(monkeypatch, "data", "fetch", "usc_had", "--from", str(archive)) == 0
    assert (tmp_path / "home" / "usc_had" / "USC-HAD" / "Subject1" / "a1t1.mat").exists()
    capsys.readouterr()
    broken = tmp_path / "broken.tar.xz"
    broken.write_bytes(archive.read_bytes()[:-40])
    place = ["--into", str(tmp_path / "elsewhere")]
    assert call(monkeypatch, "data", "fetch", "usc_had", "--from", str(broken), *place) == 2
    assert "broken.tar.xz" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()


def test_a_previewed_trace_can_be_saved_and_replayed(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    dropout = ["--set", "fleet.dropout.kind=markov", "--set", "fleet.dropout.operating=20"]
    dropout += ["--set", "fleet.dropout.missing=10", "--save", "trace.parquet"]
    assert call(monkeypatch, "data", "preview", "synthetic", *dropout) == 0
    first = capsys.readouterr().out
    trace = Trace.load(tmp_path / "trace.parquet")
    assert 0 < float(trace.share().mean()) < 1
    again = ["--set", "fleet.trace=trace.parquet"]
    assert call(monkeypatch, "data", "preview", "synthetic", *again) == 0
    assert capsys.readouterr().out.split("page:")[0] == first.split("page:")[0]
    assert call(monkeypatch, "data", "preview", "synthetic", "--client", "99") == 2
    assert "there are 0 to 9" in capsys.readouterr().err


def test_a_run_on_a_leaky_split_says_so_everywhere(
    recordings: Path, tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    call(monkeypatch, "data", "init", str(recordings))
    capsys.readouterr()
    config = tmp_path / "leaky.toml"
    table = f'[data]\nname = "own"\nfolder = "{recordings}"\nwindow = 2.0\nsplit = "leaky"\n'
    config.write_text(table + "[run]\nrounds = 1\nworkers = 1\n")
    arguments = ["run", str(config), "--into", str(tmp_path / "runs"), "--quiet"]
    assert call(monkeypatch, *arguments) == 0
    assert "warning: leaky split" in capsys.readouterr().out
    page = next((tmp_path / "runs").glob("*/report.html")).read_text("utf-8")
    assert "class='warning'>leaky split" in page


def test_the_doctor_checks_a_configuration(
    recordings: Path, monkeypatch: Patch, capsys: Capture, tmp_path: Path
) -> None:
    """Its split and its clients, by their names; the folder is beside the file."""
    assert call(monkeypatch, "data", "init", str(recordings), "--force") == 0
    path = recordings.parent / "mine.toml"
    data = f'name = "own"\nfolder = "{recordings.name}"\nwindow = 2.0\nsplit = "subject"'
    path.write_text(f'[data]\n{data}\nheld_out = [1]\n[partition]\nby = "subject"\n')
    capsys.readouterr()
    call(monkeypatch, "data", "doctor", str(path))
    text = capsys.readouterr().out
    assert "split: subject: " in text
    assert "nobody is in training and in test" in text
    assert "only tested, no training windows" in text
    by_time = ("--set", "data.split=time", "--set", "data.held_out=[]")
    call(monkeypatch, "data", "doctor", str(path), *by_time)
    assert "split: time: " in capsys.readouterr().out
