"""Comparisons of several runs at once, and in shards, as a user meets them."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from communis import CommunisError
from communis.cli.terminal import Display, out
from communis.core.claim import LOCK, Claim
from communis.exchange.messages import RoundRecord
from communis.results.compare import collect
from communis.run.config import load
from communis.run.folder import RunFolder
from communis.run.jobs import comparison
from tests.unit.cli.test_main import call

linux = pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux only")
SMALL = ["data.windows=12", "data.clients=4", "data.steps=16", "run.rounds=2", "run.workers=1"]
ROLES = "fleet.roles=[{modalities=['m0'],count=2},{modalities=['m0','m1'],count=2}]"


def compare(home: Path, *more: str) -> list[str]:
    fixed = ["compare", "fedavg", "local", "--on", "synthetic", "--seeds", "2"]
    return [*fixed, "--into", str(home), "--name", "c", *SMALL, ROLES, *more]


@linux
def test_every_line_is_one_record_of_one_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *compare(tmp_path, "--jobs", "3", "--json")) == 0
    events = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert events.pop()["event"] == "result"
    rounds: dict[tuple[str, int], list[int]] = {}
    for event in events:
        rounds.setdefault((event["method"], event["seed"]), []).append(event["round"])
    assert rounds == {(m, s): [1, 2] for m in ("fedavg", "local") for s in (0, 1)}
    shutil.rmtree(tmp_path / "c")
    assert call(monkeypatch, *compare(tmp_path, "--jobs", "2")) == 0
    said = capfd.readouterr().out
    for method in ("fedavg", "local"):
        for seed in (0, 1):
            assert f"\n{method}, seed {seed}  round 2/2  loss " in f"\n{said}"


@linux
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_run_that_fails_is_named_and_the_others_are_done(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    record = RunFolder.record

    def broken(folder: RunFolder, entry: RoundRecord, rows: Any) -> None:
        if folder.path.parts[-2:] == ("fedavg", "seed1") and entry.round == 2:
            raise CommunisError("client 3: an oversight")
        record(folder, entry, rows)

    arguments = compare(tmp_path, "--quiet", "--jobs", jobs)
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "record", broken)
        assert call(monkeypatch, *arguments) == 2
    said = " ".join(capfd.readouterr().err.split())
    assert "fedavg, seed 1: client 3: an oversight" in said
    assert "error: 1 of 4 runs failed (fedavg, seed 1), for the reasons above; what is done" in said
    whole = [run for run in collect([tmp_path]) if run.complete]
    assert [(run.method, run.seed) for run in whole] == [("fedavg", 0), ("local", 0), ("local", 1)]
    assert call(monkeypatch, *arguments) == 0
    assert all(run.complete for run in collect([tmp_path]))


@linux
def test_a_mistake_of_ours_in_one_of_several_runs_is_one_line_and_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(folder: RunFolder, *_: Any) -> None:
        if folder.path.parts[-2:] == ("fedavg", "seed1"):
            raise ZeroDivisionError("an oversight")

    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr(RunFolder, "record", broken)
    monkeypatch.setattr("tempfile.tempdir", str(kept))
    assert call(monkeypatch, *compare(tmp_path, "--quiet", "--jobs", "2")) == 2
    said = capfd.readouterr().err
    assert "fedavg, seed 1: failed with ZeroDivisionError: an oversight; this should not" in said
    assert "Traceback" not in said
    (file,) = kept.glob("communis-traceback-*")
    assert file.read_text().startswith("Traceback")


def test_a_single_run_that_fails_says_why_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise CommunisError("client 3: an oversight")

    monkeypatch.setattr(RunFolder, "record", broken)
    arguments = ["run", "synthetic", "--into", str(tmp_path), "--quiet", *SMALL, ROLES]
    assert call(monkeypatch, *arguments) == 2
    assert capfd.readouterr().err == "error: client 3: an oversight\n"


@linux
def test_a_privacy_budget_that_ends_a_run_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    budget = ["privacy.mode=local", "privacy.noise=5", "privacy.epsilon=3", "run.rounds=40"]
    fixed = ["compare", "fedavg", "fedprox", "--on", "synthetic", "--seeds", "1", "--quiet"]
    arguments = [*fixed, "--into", str(tmp_path), *SMALL, ROLES, *budget]
    said = []
    for jobs in ("1", "2"):
        assert call(monkeypatch, *arguments, "--name", jobs, "--jobs", jobs) == 0
        said.append(sorted(capfd.readouterr().err.splitlines()))
    assert said[0] == said[1]
    assert any("fedavg, seed 0: epsilon = 3 is spent after round" in line for line in said[0])


@linux
@pytest.mark.slow
def test_one_signal_stops_all_runs_and_they_are_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = compare(tmp_path, "--json", "--jobs", "2")
    with subprocess.Popen(
        [sys.executable, "-m", "communis", *arguments, "run.rounds=10000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        seen = set()
        while len(seen) < 2:
            event = json.loads(process.stdout.readline())
            seen.add((event["method"], event["seed"]))
        os.killpg(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    lines = "".join(said.split("\n"))
    assert lines.count("stopping after this round") == 1
    assert lines.count(f"continue with: communis resume {tmp_path / 'c'}") == 1
    saved = {path.parent: RunFolder(path.parent).saved() for path in tmp_path.rglob("config.toml")}
    assert len(saved) == 4
    assert sum(rounds > 0 for rounds in saved.values()) == 2
    assert all(RunFolder(folder).records(rounds) for folder, rounds in saved.items() if rounds)


def test_shards_do_their_own_runs_and_report_joins_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "c"
    assert call(monkeypatch, *compare(tmp_path, "--shard", "1/3")) == 0
    said = capsys.readouterr()
    assert "shard 1/3: 2 of 4 runs; when all shards are done" in said.err
    assert f"communis report {home}" in "".join(said.err.split("\n"))
    assert "report-1-of-3.html" in said.out
    first = {path: path.read_bytes() for path in home.rglob("records.jsonl")}
    assert len(first) == 2
    assert len(list(home.rglob("config.toml"))) == 4  # so that `resume` knows all
    assert call(monkeypatch, *compare(tmp_path, "--shard", "2/3", "--fresh")) == 0
    assert call(monkeypatch, "resume", str(home), "--shard", "3/3", "--quiet") == 0
    assert {path: path.read_bytes() for path in first} == first  # --fresh concerns its own
    capsys.readouterr()
    page = str(tmp_path / "page.html")
    assert call(monkeypatch, "report", str(home), "--output", page) == 0
    assert "2 seeds (0, 1)" in " ".join(capsys.readouterr().out.split())
    assert all(run.complete for run in collect([home]))
    assert call(monkeypatch, *compare(tmp_path, "--shard", "9/9", "--quiet")) == 0
    said = capsys.readouterr()
    assert "shard 9/9: 0 of 4 runs" in said.err
    for bad in ("3/2", "0/2", "x", "1/", "1/0"):
        assert call(monkeypatch, *compare(tmp_path, "--shard", bad)) == 2
        assert "shard" in capsys.readouterr().err


ANOTHER = """
import sys
from pathlib import Path
from communis.core.claim import Claim
claim = Claim(Path(sys.argv[1]), shared=sys.argv[2] == "shared")
print("claimed", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
@pytest.mark.parametrize(("theirs", "ours"), [("shared", ""), ("", "1/2"), ("shared", "1/2")])
def test_shards_work_beside_shards_only(
    theirs: str,
    ours: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home = tmp_path / "c"
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER, str(home), theirs],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"claimed"
        arguments = compare(tmp_path, "--quiet", *(["--shard", ours] if ours else []))
        code = call(monkeypatch, *arguments)
        other.kill()
    said = capsys.readouterr().err
    if theirs and ours:
        assert code == 0
    else:
        assert code == 2
        assert f"{home}: another process is working on this run" in said


@pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
def test_a_refused_shard_leaves_the_folder_of_others_alone(tmp_path: Path) -> None:
    claim = Claim(tmp_path, shared=True)
    assert claim.alone()
    claim.close()
    with subprocess.Popen(
        [sys.executable, "-c", ANOTHER, str(tmp_path), "shared"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline().strip() == b"claimed"
        claim = Claim(tmp_path, shared=True)
        assert not claim.alone()
        with claim.turn():
            assert (tmp_path / LOCK).exists()
        claim.close()
        other.kill()


@linux
@pytest.mark.slow
def test_shards_may_work_at_the_same_time(tmp_path: Path) -> None:
    shards = [
        subprocess.Popen(
            [sys.executable, "-m", "communis", *compare(tmp_path, "--quiet", "--shard", f"{i}/2")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ,
        )
        for i in (1, 2)
    ]
    for shard in shards:
        _, said = shard.communicate(timeout=120)
        assert shard.returncode == 0, said
    runs = collect([tmp_path])
    assert len(runs) == 4
    assert all(run.complete for run in runs)


def test_the_live_display_has_a_line_for_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(out, "_force_terminal", True)
    config = replace(load("synthetic", ["run.rounds=4"]), compare=("fedavg", "fedprox", "local"))
    jobs = comparison([config], 1, tmp_path, "")
    record = RoundRecord(2, (0, 1), 1.5, bytes_down=1, bytes_up=1, bytes_framing=0, seconds=0.1)
    with out.capture(), Display(jobs, "", json_lines=False, quiet=False, at_once=2) as display:
        assert display._bar is not None
        display.skip(jobs[0])
        display.begin(jobs[1], 1)
        display.begin(jobs[2], 0)
        display.record(jobs[1], record)
        shown = [(t.description, t.completed, t.total) for t in display._bar.tasks]
        assert shown == [
            ("1 of 3 runs", 6, 12),
            (jobs[1].label, 2, 4),
            (jobs[2].label, 0, 4),
        ]
        display.end(jobs[1])
        assert [task.description for task in display._bar.tasks] == ["2 of 3 runs", jobs[2].label]
