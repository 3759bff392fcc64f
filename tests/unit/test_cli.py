"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from communis import CommunisError
from communis.cli import main
from communis.compare import collect

SMALL = ["--set", "data.windows=20", "--set", "run.workers=1", "--set", "run.rounds=3"]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["communis", *arguments])
    try:
        main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def test_run_prints_progress_and_writes_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "synthetic", "--into", str(tmp_path), *SMALL]
    assert call(monkeypatch, *arguments) == 0
    text = capsys.readouterr().out
    assert "round 3/3" in text
    assert "report:" in text
    assert (tmp_path / "synthetic-fedavg" / "report.html").exists()
    assert call(monkeypatch, *arguments) == 0  # a second run gets a folder of its own
    assert (tmp_path / "synthetic-fedavg-2").exists()


def test_run_does_not_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "synthetic", "--into", str(tmp_path), "--name", "mine", "--quiet", *SMALL]
    assert call(monkeypatch, *arguments) == 0
    assert call(monkeypatch, *arguments) == 2
    assert "communis resume" in capsys.readouterr().err


def test_compare_continues_and_refuses_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["compare", "fedavg", "local", "--on", "synthetic", "--into", str(tmp_path)]
    arguments = [*base, "--name", "c", "--seeds", "2", *SMALL]
    assert call(monkeypatch, *arguments) == 0
    first = capsys.readouterr().out
    assert "against" in first
    assert "within the spread" in first or "worse than the best" in first
    before = {r.path: r.records for r in collect([tmp_path / "c"])}
    assert call(monkeypatch, *arguments) == 0  # nothing is left to do
    assert {r.path: r.records for r in collect([tmp_path / "c"])} == before
    assert call(monkeypatch, *arguments, "--set", "method.lr=0.2") == 2
    assert "--fresh" in capsys.readouterr().err
    assert call(monkeypatch, *arguments, "--set", "method.lr=0.2", "--fresh", "--quiet") == 0


def test_methods_of_one_seed_are_paired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same splits, roles and initial weights: fedprox with mu = 0 equals fedavg."""
    arguments = ["compare", "fedavg", "fedprox", "--on", "synthetic", "--into", str(tmp_path)]
    arguments += ["--seeds", "1", "--set", "methods.fedprox.mu=0", "--quiet", *SMALL]
    assert call(monkeypatch, *arguments) == 0
    one, two = collect([tmp_path])
    assert [r.scores for r in one.records] == [r.scores for r in two.records]


def test_an_interrupted_comparison_is_resumed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that had not begun are known to `resume` too."""
    base = ["compare", "fedavg", "local", "--on", "synthetic", "--into", str(tmp_path)]
    arguments = [*base, "--name", "c", "--seeds", "2", "--quiet", *SMALL]

    def interrupt(*_: Any, **__: Any) -> None:
        raise CommunisError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr("communis.jobs._perform", interrupt)
        assert call(monkeypatch, *arguments) == 2
    assert call(monkeypatch, "resume", str(tmp_path / "c"), "--quiet") == 0
    runs = collect([tmp_path / "c"])
    assert [run.method for run in runs] == ["fedavg", "fedavg", "local", "local"]
    assert [run.seed for run in runs] == [0, 1, 0, 1]
    assert all(run.complete for run in runs)


def test_fresh_removes_runs_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = tmp_path / "keep" / "thesis.txt"
    keep.parent.mkdir()
    keep.write_text("three years")
    base = ["compare", "fedavg", "--on", "synthetic", "--into", str(tmp_path), "--seeds", "1"]
    assert call(monkeypatch, *base, "--name", "keep", "--fresh", "--quiet", *SMALL) == 0
    assert keep.read_text() == "three years"
    for name in ("..", "a/b"):
        assert call(monkeypatch, *base, "--name", name, "--fresh", *SMALL) == 2
        assert "cannot be the name of a folder" in capsys.readouterr().err


def test_a_wrong_metric_is_found_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "synthetic", "--into", str(tmp_path), "--metric", "acuracy", *SMALL]
    assert call(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert "did you mean 'accuracy'?" in captured.err
    assert "round 3/3" not in captured.out


def test_an_unwritable_place_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert call(monkeypatch, "run", "synthetic", "--into", str(tmp_path / "file"), *SMALL) == 2
    captured = capsys.readouterr()
    assert "error:" in captured.err
    assert "Traceback" not in captured.err


def test_json_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "synthetic", "--into", str(tmp_path), "--json", *SMALL]
    assert call(monkeypatch, *arguments) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [e["event"] for e in events] == ["round", "round", "round", "result"]
    assert events[0]["method"] == "fedavg"
    assert "accuracy" in events[-1]["rows"][0]["scores"]
    for command in (["methods"], ["methods", "moon"], ["data", "list"]):
        assert call(monkeypatch, *command, "--json") == 0
        json.loads(capsys.readouterr().out)


def test_lists(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "methods") == 0
    assert "scaffold" in capsys.readouterr().out
    assert call(monkeypatch, "methods", "scaffold") == 0
    assert "method.lr_server" in capsys.readouterr().out
    assert call(monkeypatch, "data", "list") == 0
    assert "watch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing"], "neither a file nor a preset"),
        (["run", "synthetic", "--set", "run.rouns=1"], "did you mean 'rounds'?"),
        (["compare", "fedavgg", "--on", "synthetic"], "did you mean 'fedavg'?"),
        (["resume", "nowhere"], "no run to resume here"),
        (["report", "nowhere"], "no such folder"),
        (["methods", "fedavgg"], "did you mean 'fedavg'?"),
    ],
)
def test_mistakes_are_one_clear_line(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert not list(tmp_path.iterdir())  # nothing was made


def test_mixed_models_are_refused_with_the_methods_that_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "synthetic", "--into", str(tmp_path), *SMALL, "--quiet"]
    arguments += ["--set", "fleet.models=['cnn','cnn_small']"]
    assert call(monkeypatch, *arguments) == 2
    assert "fedproto, local" in capsys.readouterr().err
    assert call(monkeypatch, *arguments, "--set", "method.name=fedproto") == 0


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT to a process")
def test_ctrl_c_saves_and_resume_ends_with_the_same_numbers(tmp_path: Path) -> None:
    settings = ["--set", "data.windows=60", "--set", "run.rounds=12", "--set", "run.eval_every=1"]
    whole = [sys.executable, "-m", "communis", "run", "synthetic", "--quiet", *settings]
    subprocess.run([*whole, "--into", str(tmp_path), "--name", "whole"], check=True, timeout=120)
    process: subprocess.Popen[Any] = subprocess.Popen(
        [*whole, "--into", str(tmp_path), "--name", "cut"], stderr=subprocess.PIPE, text=True
    )
    records = tmp_path / "cut" / "records.jsonl"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (records.exists() and records.stat().st_size):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "communis resume" in errors
    done = len(records.read_text("utf-8").splitlines())
    assert 0 < done < 12
    subprocess.run(
        [sys.executable, "-m", "communis", "resume", str(tmp_path / "cut"), "--quiet"],
        check=True,
        timeout=120,
    )
    a, b = collect([tmp_path / "whole"])[0], collect([tmp_path / "cut"])[0]
    assert a.scores.equals(b.scores)
    assert [(r.loss, r.bytes_up) for r in a.records] == [(r.loss, r.bytes_up) for r in b.records]
    whole_bytes = (tmp_path / "whole" / "checkpoint.safetensors").read_bytes()
    assert (tmp_path / "cut" / "checkpoint.safetensors").read_bytes() == whole_bytes
