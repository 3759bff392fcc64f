"""The command line as a user meets it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from communis import CommunisError, Fleet
from communis.cli.main import main
from communis.cli.terminal import Display
from communis.core import disk
from communis.core.selection import Select
from communis.results.compare import collect, comparable
from communis.results.wording.scores import counts
from communis.run.config import Config
from communis.run.folder import RunFolder
from communis.run.jobs import Job

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


@pytest.mark.slow
def test_compare_continues_and_refuses_other_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base = ["compare", "fedavg", "local", "--on", "synthetic", "--into", str(tmp_path)]
    arguments = [*base, "--name", "c", "--seeds", "2", *SMALL]
    assert call(monkeypatch, *arguments) == 0
    first = capsys.readouterr().out
    assert "against" in first
    assert "too few seeds" in first
    before = {r.path: r.records for r in collect([tmp_path / "c"])}
    assert call(monkeypatch, *arguments) == 0  # nothing is left to do
    assert {r.path: r.records for r in collect([tmp_path / "c"])} == before
    assert call(monkeypatch, *arguments, "--set", "method.lr=0.2") == 2
    assert "--fresh" in capsys.readouterr().err
    assert call(monkeypatch, *arguments, "--set", "method.lr=0.2", "--fresh", "--quiet") == 0


@pytest.mark.slow
def test_compare_does_not_mix_results_of_devices_that_have_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file of profiles may have been measured again since; who wrote it makes no difference."""
    devices, file = tmp_path / "devices.toml", tmp_path / "fleet.toml"
    text = "[d]\nflops = 1e9\npower_active = 1.0\npower_idle = 0.1\npower_radio = 0.5\n"
    devices.write_text(text + "up = 1e6\ndown = 1e6\nsource = 'one'\n", "utf-8")
    file.write_text(
        f"""name = "timed"
        [data]
        name = "synthetic"
        [fleet]
        profiles = "{devices}"
        roles = [{{ modalities = ["m0", "m1"], count = 10, device = "d" }}]
        """,
        "utf-8",
    )
    small = ["--set", "run.rounds=1", "--set", "data.windows=6", "--set", "data.steps=16"]
    one = ["compare", "fedavg", "--on", str(file), "--into", str(tmp_path), "--name", "c"]
    arguments = [*one, "--seeds", "1", "--quiet", *small]
    assert call(monkeypatch, *arguments) == 0
    devices.write_text(devices.read_text("utf-8").replace("'one'", "'other'"), "utf-8")
    assert call(monkeypatch, *arguments) == 0
    devices.write_text(devices.read_text("utf-8").replace("1e9", "4e9"), "utf-8")
    assert call(monkeypatch, *arguments) == 0  # nothing is left to do
    assert call(monkeypatch, *arguments, "--seeds", "2") == 2
    assert "other device profiles, pretrained weights or models" in capsys.readouterr().err
    half = tmp_path / "c" / "fedavg" / "seed1"
    half.mkdir()
    text = (half.parent / "seed0" / "config.toml").read_text("utf-8")
    (half / "config.toml").write_text(text.replace("seed = 0", "seed = 1", 1), "utf-8")
    assert call(monkeypatch, "resume", str(tmp_path / "c"), "--quiet") == 2
    assert "other device profiles, pretrained weights or models" in capsys.readouterr().err
    shutil.rmtree(half)
    assert call(monkeypatch, *arguments, "--name", "d") == 0
    first, second = (collect([tmp_path / home])[0] for home in "cd")
    assert not comparable(first, second)
    assert {run.method for run in collect([tmp_path / "c", tmp_path / "d"])} == {
        "fedavg (c)",
        "fedavg (d)",
    }


@pytest.mark.slow
def test_results_of_an_older_version_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A setting that its configuration does not know has its default."""
    base = ["compare", "fedavg", "--on", "synthetic", "--into", str(tmp_path), "--name", "c"]
    arguments = [*base, "--seeds", "1", "--quiet", *SMALL]
    assert call(monkeypatch, *arguments) == 0
    path = tmp_path / "c" / "fedavg" / "seed0" / "config.toml"
    text = path.read_text("utf-8")
    path.write_text(re.sub(r"^(ema|max_message_mb) = .*\n", "", text, flags=re.M), "utf-8")
    assert call(monkeypatch, *arguments) == 0
    assert path.read_text("utf-8") == text
    for other in (text.replace("lr = ", "lr = 1"), text.replace("lr = ", "lrr = "), "[run"):
        path.write_text(other, "utf-8")
        assert call(monkeypatch, *arguments) == 2
        assert "holds results of other settings" in capsys.readouterr().err


@pytest.mark.slow
def test_more_rounds_continue_a_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = ["compare", "fedavg", "--on", "synthetic", "--into", str(tmp_path), "--seeds", "1"]
    scores = []
    for name, steps in (("once", [3]), ("twice", [2, 3])):
        for rounds in steps:
            more = ["--name", name, "--quiet", *SMALL, "--set", f"run.rounds={rounds}"]
            assert call(monkeypatch, *base, *more) == 0
        (run,) = collect([tmp_path / name])
        assert [record.round for record in run.records] == [1, 2, 3]
        scores.append(run.final("accuracy"))
    assert scores[0] == scores[1]


@pytest.mark.slow
def test_methods_of_one_seed_are_paired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same splits, roles and initial weights: fedprox with mu = 0 equals fedavg."""
    arguments = ["compare", "fedavg", "fedprox", "--on", "synthetic", "--into", str(tmp_path)]
    arguments += ["--seeds", "1", "--set", "methods.fedprox.mu=0", "--quiet", *SMALL]
    assert call(monkeypatch, *arguments) == 0
    one, two = collect([tmp_path])
    assert [r.scores for r in one.records] == [r.scores for r in two.records]


@pytest.mark.slow
def test_an_interrupted_comparison_is_resumed_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that had not begun are known to `resume` too."""
    base = ["compare", "fedavg", "local", "--on", "synthetic", "--into", str(tmp_path)]
    arguments = [*base, "--name", "c", "--seeds", "2", "--quiet", *SMALL]

    def interrupt(*_: Any, **__: Any) -> None:
        raise CommunisError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(Job, "open", interrupt)
        assert call(monkeypatch, *arguments) == 2
    assert call(monkeypatch, "resume", str(tmp_path / "c"), "--quiet") == 0
    runs = collect([tmp_path / "c"])
    assert [run.method for run in runs] == ["fedavg", "fedavg", "local", "local"]
    assert [run.seed for run in runs] == [0, 1, 0, 1]
    assert all(run.complete for run in runs)


@pytest.mark.slow
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
    assert "round" not in captured.out
    compare = ["compare", "fedavg", "--on", "synthetic", "--into", str(tmp_path), "--seeds", "1"]
    assert call(monkeypatch, *compare, "--metric", "mpjpe", *SMALL) == 2
    assert "no metric 'mpjpe'; there are accuracy, macro_f1" in capsys.readouterr().err
    mixed = ["--set", "fleet.models=['cnn','cnn_small']"]
    assert call(monkeypatch, *compare, *SMALL, *mixed) == 2
    assert not list(tmp_path.iterdir())  # what is refused leaves no folder
    pooled = [*arguments[: -len(SMALL) - 1], "macro_f1_pooled", *SMALL]
    assert call(monkeypatch, *pooled, "--quiet") == 0


def test_an_unwritable_place_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("not a folder")
    assert call(monkeypatch, "run", "synthetic", "--into", str(tmp_path / "file"), *SMALL) == 2
    captured = capsys.readouterr()
    assert "error:" in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.slow
def test_json_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", "synthetic", "--into", str(tmp_path), "--json", *SMALL]
    assert call(monkeypatch, *arguments) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [e["event"] for e in events] == ["round", "round", "round", "result"]
    assert events[0]["method"] == "fedavg"
    assert "accuracy" in events[-1]["rows"][0]["scores"]
    for command in (["methods"], ["methods", "moon"], ["presets"], ["data", "list"]):
        assert call(monkeypatch, *command, "--json") == 0
        json.loads(capsys.readouterr().out)


def test_lists(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "methods") == 0
    assert "scaffold" in capsys.readouterr().out
    assert call(monkeypatch, "methods", "scaffold") == 0
    assert "method.lr_server" in capsys.readouterr().out
    assert call(monkeypatch, "data", "list") == 0
    assert "watch" in capsys.readouterr().out
    assert call(monkeypatch, "presets") == 0
    text = capsys.readouterr().out
    assert re.search(
        r"^synthetic +A quick trial that needs no data: .* six classes\. *$", text, re.M
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "nothing"], "neither a file nor a preset"),
        (["run", "synthetic", "--set", "run.rouns=1"], "did you mean 'rounds'?"),
        (["compare", "fedavgg", "--on", "synthetic"], "did you mean 'fedavg'?"),
        (["resume", "nowhere"], "no such folder"),
        (["resume", "."], "no run to resume here"),
        (["report", "nowhere"], "no such folder"),
        (["methods", "fedavgg"], "did you mean 'fedavg'?"),
        (["compare", "--on", "synthetic"], "communis compare fedavg local --on synthetic"),
        (["run", "synthetic", "--cell", "a/b"], "without a grid there is no cell 'a/b'"),
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


EXPERIMENT = """
name = "trial"
compare = ["fedavg", "still"]
[data]
name = "synthetic"
clients = 3
classes = 2
windows = 15
steps = 16
[fleet]
models = ["cnn_small"]
[method]
name = "fedavg"
[variants.still]
name = "fedavg"
lr = 1e-9
[run]
rounds = 1
workers = 1
[grid.H.all]
[grid.H.some]
fleet.suites.preset = "severe"
[grid.I.steady]
[grid.I.shaky]
fleet.dropout = { kind = "iid", rate = 0.3 }
"""
METHODS = ["fedavg", "still"]
CELLS = ["all-steady", "all-shaky", "some-steady", "some-shaky"]


@pytest.fixture
def experiment(tmp_path: Path) -> str:
    path = tmp_path / "experiment.toml"
    path.write_text(EXPERIMENT)
    return str(path)


@pytest.fixture
def fleets(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """The seed and cell of every fleet that is made."""
    made = []
    make = Config.make_fleet

    def count(config: Config) -> Fleet:
        made.append((config.seed, "-".join(config.cell.values())))
        return make(config)

    monkeypatch.setattr(Config, "make_fleet", count)
    return made


def labels(home: Path) -> list[str]:
    """The folders of finished runs."""
    return [
        run.path.relative_to(home).as_posix()
        for run in sorted(collect([home]), key=lambda run: run.path)
        if run.complete
    ]


@pytest.mark.slow
def test_compare_runs_every_cell_and_continues(
    experiment: str,
    fleets: list[tuple[int, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["compare", "--on", experiment, "--into", str(tmp_path), "--seeds", "2", "--quiet"]
    part = [*arguments, "--cell", "some/shaky", "--cell", "all/steady", "--seeds", "1"]
    assert call(monkeypatch, *part) == 0
    home = tmp_path / "trial-compare"
    first = [f"{cell}/{m}/seed0" for cell in ("all-steady", "some-shaky") for m in METHODS]
    assert labels(home) == first
    config = tomllib.loads((home / first[-1] / "config.toml").read_text("utf-8"))
    assert (config["cell"], config["variant"]) == ({"H": "some", "I": "shaky"}, "still")
    before = (home / first[0] / "records.jsonl").read_bytes()
    fleets.clear()
    assert call(monkeypatch, *arguments) == 0
    assert labels(home) == sorted(
        f"{c}/{m}/seed{s}" for c in CELLS for m in METHODS for s in (0, 1)
    )
    assert (home / first[0] / "records.jsonl").read_bytes() == before
    left = [(0, "all-shaky"), (0, "some-steady"), *((1, cell) for cell in CELLS)]
    assert fleets == left  # methods share them, and what is done needs none
    fleets.clear()
    for command in (arguments, ["resume", str(home), "--quiet"]):
        assert call(monkeypatch, *command) == 0
        assert fleets == []
    capsys.readouterr()
    assert call(monkeypatch, *arguments, "--cell", "some/shaki") == 2
    assert "did you mean 'some/shaky'?" in capsys.readouterr().err


@pytest.mark.slow
def test_a_grid_that_was_interrupted_is_resumed_whole(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["compare", "still", "--on", experiment, "--into", str(tmp_path), "--seeds", "1"]

    def interrupt(*_: Any, **__: Any) -> None:
        raise CommunisError("the power went")

    with monkeypatch.context() as patch:
        patch.setattr(Job, "open", interrupt)
        assert call(monkeypatch, *arguments) == 2
    home = tmp_path / "trial-compare"
    assert call(monkeypatch, "resume", str(home), "--quiet") == 0
    assert labels(home) == sorted(f"{cell}/still/seed0" for cell in CELLS)
    config = tomllib.loads((home / "some-steady/still/seed0/config.toml").read_text("utf-8"))
    assert config["method"]["lr"] == 1e-9
    assert config["cell"] == {"H": "some", "I": "steady"}
    assert config["levels"] == {"H": ["all", "some"], "I": ["steady", "shaky"]}
    assert config["fleet"]["suites"]["preset"] == "severe"


def test_run_takes_one_cell(
    experiment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["run", experiment, "--into", str(tmp_path)]
    assert call(monkeypatch, *arguments) == 2
    assert "all/steady, all/shaky, some/steady, some/shaky" in capsys.readouterr().err
    assert call(monkeypatch, *arguments, "--cell", "some/steady", "--json") == 0
    assert labels(tmp_path) == ["trial-some-steady-fedavg"]
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert first["cell"] == {"H": "some", "I": "steady"}
    assert "variant" not in first


@pytest.mark.slow
def test_progress_names_cell_and_variant(
    experiment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["compare", "still", "--on", experiment, "--into", str(tmp_path), "--seeds", "1"]
    assert call(monkeypatch, *arguments, "--cell", "all/shaky") == 0
    assert "all/shaky, still, seed 0  round 1/1" in capsys.readouterr().out
    assert call(monkeypatch, *arguments, "--cell", "all/shaky", "--fresh", "--json") == 0
    first = json.loads(capsys.readouterr().out.splitlines()[0])
    assert (first["variant"], first["method"]) == ("still", "fedavg")


def test_what_is_wrong_with_a_fleet_names_file_cell_and_method(
    experiment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["compare", "still", "--on", experiment, "--into", str(tmp_path), "--seeds", "1"]
    missing = "grid.I.shaky.fleet={trace='nowhere.parquet'}"
    assert call(monkeypatch, *arguments, "--quiet", "--set", missing) == 2
    assert f"{experiment}: all/shaky, still, seed 0: nowhere.parquet" in capsys.readouterr().err
    mixed = "fleet.models=['cnn','cnn_small']"
    assert call(monkeypatch, *arguments, "--quiet", "--fresh", "--set", mixed) == 2
    assert f"{experiment}: all/steady, still, seed 0: " in capsys.readouterr().err


@pytest.mark.slow
def test_settings_of_one_method_do_not_undo_what_is_set(
    experiment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    common = ["--into", str(tmp_path), "--cell", "all/steady", "--set", "method.lr=0.2", "--quiet"]
    assert call(monkeypatch, "compare", "--on", experiment, *common) == 2
    assert (
        "variants.still sets it; change that: --set variants.still.lr=" in capsys.readouterr().err
    )
    named = ["--set", "method.name=still"]
    assert call(monkeypatch, "run", experiment, *common, *named) == 2
    assert "variants.still sets it" in capsys.readouterr().err
    assert call(monkeypatch, "run", experiment, *common) == 0
    assert call(monkeypatch, "compare", "fedavg", "--on", experiment, "--seeds", "1", *common) == 0


def test_run_takes_a_variant(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["run", experiment, "--into", str(tmp_path), "--cell", "all/steady", "--quiet"]
    assert call(monkeypatch, *arguments, "--set", "method.name=still") == 0
    assert labels(tmp_path) == ["trial-all-steady-still"]
    (run,) = collect([tmp_path])
    assert (run.method, run.config["method"]["lr"]) == ("still", 1e-9)


@pytest.mark.slow
def test_what_is_done_counts_as_progress(
    experiment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["compare", "--on", experiment, "--into", str(tmp_path), "--cell", "all/steady"]
    assert call(monkeypatch, *arguments, "--seeds", "1", "--quiet") == 0
    begun = []
    monkeypatch.setattr(Display, "skip", lambda _, job: begun.append((job.label, 1)))
    begin = Display.begin

    def noted(display: Display, job: Job, done: int) -> None:
        begun.append((job.label, done))
        begin(display, job, done)

    monkeypatch.setattr(Display, "begin", noted)
    assert call(monkeypatch, *arguments, "--seeds", "2", "--quiet", "--jobs", "1") == 0
    assert begun == [(f"all/steady, {m}, seed {s}", 1 - s) for s in (0, 1) for m in METHODS]


@pytest.mark.slow
def test_the_files_metric_is_judged_by_unless_another_is_named(
    experiment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = Path(experiment)
    common = ["--into", str(tmp_path), "--cell", "all/steady"]
    path.write_text(f"metric = 'macro_f2'\n{EXPERIMENT}")
    assert call(monkeypatch, "run", experiment, *common) == 2
    assert "no metric 'macro_f2' (did you mean 'macro_f1'?)" in capsys.readouterr().err
    path.write_text(f"metric = 'macro_f1'\n{EXPERIMENT}")
    compare = ["compare", "--on", experiment, "--seeds", "1", *common]
    home = str(tmp_path / "trial-compare")
    assert call(monkeypatch, *compare) == 0
    assert "round 1/1  loss" in (text := capsys.readouterr().out)
    assert "macro_f1 0." in text
    output = ["--output", str(tmp_path / "report.html")]
    for command in (compare, ["resume", home], ["report", home, *output]):
        for asked, judged in (([], "macro_f1"), (["--metric", "accuracy"], "accuracy")):
            assert call(monkeypatch, *command, *asked, "--json") == 0
            assert json.loads(capsys.readouterr().out.splitlines()[-1])["metric"] == judged
    path.write_text(EXPERIMENT)  # the same experiment, judged by another score
    assert call(monkeypatch, *compare, "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["metric"] == "accuracy"


@pytest.mark.slow
def test_a_refusal_leaves_no_claim_on_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the refusal advises can be done under the same name."""
    compare = ["compare", "fedavg", "--on", "synthetic", "--into", str(tmp_path), "--seeds", "1"]
    compare += ["--set", "fleet.models=['cnn_small', 'cnn']", "--set", "run.rounds=1", "--quiet"]
    assert call(monkeypatch, *compare) == 2
    assert "methods.fedavg.by_model = true" in " ".join(capsys.readouterr().err.split())
    assert call(monkeypatch, *compare, "--set", "methods.fedavg.by_model=true") == 0
    folders = [str(path) for path in sorted(tmp_path.rglob("seed0"))] * 4
    page = tmp_path / "page.html"
    assert call(monkeypatch, "report", *folders, "--output", str(page)) == 0
    assert "and 1 more</h1>" in page.read_text("utf-8")


@pytest.mark.slow
def test_report_says_what_compare_says(
    experiment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    compare = ["compare", "--on", experiment, "--into", str(tmp_path), "--seeds", "1"]
    assert call(monkeypatch, *compare, "--cell", "all/steady", "--quiet") == 0
    home = tmp_path / "trial-compare"
    for path in home.rglob("fleet.json"):
        about = disk.read_json(path)
        disk.write_json(path, {**about, "notes": ["half of it is invented"]})
    report = ["report", str(home), "--output", str(tmp_path / "page.html")]
    said = []
    for command in (["resume", str(home)], report):
        capsys.readouterr()
        assert call(monkeypatch, *command) == 0
        assert "warning: half of it is invented" in capsys.readouterr().out
        assert call(monkeypatch, *command, "--json") == 0
        said.append(json.loads(capsys.readouterr().out))
    assert [found.pop("report") for found in said] == [
        str(home / "report.html"),
        str(tmp_path / "page.html"),
    ]
    assert said[0] == said[1]
    assert said[0]["warnings"] == ["half of it is invented"]
    assert [row["method"] for row in said[0]["rows"]]


def test_two_runs_do_not_share_a_folder(
    experiment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["compare", "--on", experiment, "--into", str(tmp_path), "--seeds", "1"]
    with Path(experiment).open("a") as file:
        file.write("[grid.I.x]\n[grid.H.all-x]\n[grid.I.x-steady]\n")
    assert call(monkeypatch, *arguments) == 2
    assert "the folder of both (all/x-steady, fedavg, seed 0)" in capsys.readouterr().err
    assert not (tmp_path / "trial-compare").exists()


@pytest.mark.slow
def test_the_round_that_counts_is_passed_on(
    experiment: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    home, page = tmp_path / "mine", tmp_path / "mine" / "report.html"
    named = ["--into", str(tmp_path), "--name", "mine", "--cell", "all/steady"]
    commands: list[tuple[list[str], Select]] = [
        (["run", experiment, *named], "client"),
        (["resume", str(home)], "common"),
        (["report", str(home), "--output", str(page)], "client"),
        (["compare", "fedavg", "still", "--on", experiment, "--seeds", "1", *named], "common"),
    ]
    for command, select in commands:
        assert call(monkeypatch, *command, "--select", select) == 0
        assert counts(select, "accuracy") in " ".join(capsys.readouterr().out.split())
        assert counts(select, "accuracy") in page.read_text("utf-8")
        assert call(monkeypatch, *command, "--select", "best") == 2
        assert "client" in capsys.readouterr().err
    assert call(monkeypatch, *commands[-1][0], "--select", "client", "--json") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["select"] == "client"


@pytest.mark.slow
def test_the_target_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home, page = tmp_path / "mine", tmp_path / "mine" / "report.html"
    named = ["--into", str(tmp_path), "--name", "mine", *SMALL, "--set", "target=0.11"]
    commands = [
        ["compare", "fedavg", "--on", "synthetic", "--seeds", "1", *named],
        ["resume", str(home)],
        ["report", str(home), "--output", str(page)],
    ]
    for command in commands:
        for option, target in ([], "0.11"), (["--target", "0.12"], "0.12"):
            assert call(monkeypatch, *command, *option) == 0
            assert f"to accuracy {target}" in capsys.readouterr().out
            assert f"to accuracy {target}" in page.read_text("utf-8")
        assert call(monkeypatch, *command, "--target", "-1") == 2
        assert "--target" in capsys.readouterr().err
    assert call(monkeypatch, *commands[0], "--set", "target=0.13") == 0  # no other results
    assert call(monkeypatch, *commands[0], "--json", "--target", "0.14") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])["traffic"]
    assert [one["target"] for one in found] == [0.14]
    single = ["run", "synthetic", *SMALL, "--into", str(tmp_path), "--target", "0.1"]
    assert call(monkeypatch, *single) == 0
    assert "to accuracy 0.1" in capsys.readouterr().out


@pytest.mark.slow
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
    assert RunFolder(a.path).scores().equals(RunFolder(b.path).scores())
    assert [(r.loss, r.bytes_up) for r in a.records] == [(r.loss, r.bytes_up) for r in b.records]
    whole_bytes = (tmp_path / "whole" / "checkpoint.safetensors").read_bytes()
    assert (tmp_path / "cut" / "checkpoint.safetensors").read_bytes() == whole_bytes


def test_a_method_that_cannot_run_is_found_before_any_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    liars = ["--set", "attack.kind=shift", "--set", "attack.count=2"]
    named = ["--on", "synthetic", "--into", str(tmp_path), "--name", "mine", *SMALL, *liars]
    assert call(monkeypatch, "compare", "fedavg", "centralized", *named) == 2
    said = capsys.readouterr().err
    assert "Centralized pools data at a server: nobody could lie to it; leave it out" in said
    assert not list(tmp_path.rglob("records.jsonl"))
    late = ["run", "synthetic", "--into", str(tmp_path), *SMALL, *liars, "--set", "attack.start=9"]
    assert call(monkeypatch, *late) == 2
    assert "attack.start = 9 is after the last round" in capsys.readouterr().err


@pytest.mark.slow
def test_who_is_scored_under_attack_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    liars = ["--set", "attack.kind=shift", "--set", "attack.count=2"]
    assert call(monkeypatch, "run", "synthetic", "--into", str(tmp_path), *SMALL, *liars) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "10 clients (8 scored, as the others attack)" in said
    assert "scores are of the other 8" in said
