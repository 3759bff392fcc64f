"""Runs that begin with what another run learned, and runs that get more rounds."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from communis import CommunisError
from communis.cli.main import app
from communis.core import disk
from communis.core.state import State
from communis.fleet.clients import FleetClients
from communis.fleet.start import Start
from communis.results.trained import Trained
from communis.run.config import Config, load
from communis.run.folder import RunFolder
from communis.run.jobs import Job, begun_in, prepare, refuse_changed_files
from communis.run.learned import LearnedFolder
from communis.run.start import start_of

SMALL = (
    "data.clients=5", "data.windows=30", "data.classes=3", "data.steps=16", "data.channels=2",
    "run.rounds=2", 'fleet.models=["cnn_small"]', "method.name=fedavg",
    "fleet.roles=[{modalities=['m0'], count=2}, {modalities=['m0', 'm1', 'm2'], count=3}]",
)  # fmt: skip


def config_of(*settings: str) -> Config:
    return load("synthetic", [*SMALL, *settings])


def finished(folder: Path, *settings: str, workers: int = 1) -> Path:
    config = config_of(*settings)
    with Job(config, folder).open(config.make_fleet(), workers) as run:
        list(run)
    (folder / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(tmp_path_factory.mktemp("start") / "run")


def started(run: Path, *settings: str) -> Config:
    return config_of(f"fleet.start='{run}'", *settings)


def clients_of(config: Config) -> FleetClients:
    return FleetClients(config.make_fleet(), config.make_method())


def test_every_client_begins_with_its_paths_of_the_common_model(home: Path) -> None:
    clients = clients_of(started(home, "method.name=local"))
    learned = dict(Trained(home).common().network.named_parameters())
    assert clients.params.keys()
    for path, tensor in clients.params.items():
        assert torch.equal(tensor, learned[path])
    model = clients.client(0, 0, fresh=True).model
    for path, tensor in model.by_path[0].items():
        assert torch.equal(tensor, learned[path])
    untrained = clients_of(config_of()).params
    assert any(not torch.equal(untrained[path], learned[path]) for path in untrained)


def test_a_rate_of_almost_zero_gives_the_scores_of_the_start(home: Path, tmp_path: Path) -> None:
    again = finished(
        tmp_path / "again", f"fleet.start='{home}'", "method.name=local", "method.lr=1e-30"
    )
    before, after = (RunFolder(run).records()[-1].scores for run in (home, again))
    assert after["test.accuracy"] == before["test.accuracy"]


def test_models_of_several_architectures_each_begin_with_their_own(tmp_path: Path) -> None:
    two = 'fleet.models=["cnn_small", "cnn"]'
    run = finished(tmp_path / "mixed", two, "method.by_model=true")
    clients = clients_of(started(run, two, "method.name=local"))
    trained = Trained(run)
    learned = {
        name: {
            path.partition("@")[0]: tensor
            for path, tensor in trained.common(name).network.by_path[0].items()
        }
        for name in ("cnn_small", "cnn")
    }
    for card in clients.cards:
        model = clients.client(card.id, 0, fresh=True).model
        for path, tensor in model.by_path[0].items():
            assert torch.equal(tensor, learned[card.model][path.partition("@")[0]])


def test_what_does_not_fit_begins_anew_and_is_named(home: Path) -> None:
    config = started(home, "data.channels=3")
    clients = clients_of(config)
    fresh = clients_of(config_of("data.channels=3"))
    learned = dict(Trained(home).common().network.named_parameters())
    anew = {p for p, t in clients.params.items() if torch.equal(t, fresh.params[p])}
    kept = clients.params.keys() - anew
    assert any(path.startswith("encoders.m0") for path in anew)
    assert any(path.startswith("head") for path in kept)
    assert all(torch.equal(clients.params[path], learned[path]) for path in kept)
    (note,) = clients.describe()["notes"]
    assert all(path in note for path in anew if learned[path].shape != clients.params[path].shape)
    assert "the same dataset" in note


def test_a_dataset_of_another_name_is_not_called_the_same(home: Path, tmp_path: Path) -> None:
    def leaks(run: Path) -> str:
        return str(json.loads((run / "privacy.json").read_text())["leaks"])

    same = finished(tmp_path / "same", f"fleet.start='{home}'", "run.rounds=1")
    assert "learned from the same dataset" in leaks(same)
    other = {"name": "world"}
    assert not start_of(home, other).same_data
    assert leaks(home) == "[]"


def test_own_recordings_are_the_same_by_their_folder(home: Path, tmp_path: Path) -> None:
    run = shutil.copytree(home, tmp_path / "run")
    text = f"[data]\nname = 'own'\nfolder = '{tmp_path}/a'\n"
    (run / "config.toml").write_text(text, encoding="utf-8")
    assert not start_of(run, {"name": "own", "folder": f"{tmp_path}/b"}).same_data
    assert start_of(run, {"name": "own", "folder": f"{tmp_path}/b/../a"}).same_data


def test_the_same_data_are_found_through_runs_between(home: Path, tmp_path: Path) -> None:
    between = shutil.copytree(home, tmp_path / "between")
    other = "[data]\nname = 'world'\n[fleet]\nstart = '{}'\n"
    config = between / "config.toml"
    synthetic = {"name": "synthetic"}
    config.write_text(other.format(home), encoding="utf-8")
    assert start_of(between, synthetic).same_data
    assert not start_of(between, {"name": "dsads"}).same_data
    config.write_text(other.format(between), encoding="utf-8")  # a circle
    assert not start_of(between, synthetic).same_data
    config.write_text(other.format(tmp_path / "gone"), encoding="utf-8")
    assert start_of(between, synthetic).same_data  # not known


def test_own_recordings_at_a_relative_path_that_leads_nowhere_may_be_the_same(
    home: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(home, tmp_path / "run")
    text = "[data]\nname = 'own'\nfolder = 'no/such/recordings'\n"
    (run / "config.toml").write_text(text, encoding="utf-8")
    assert start_of(run, {"name": "own", "folder": str(tmp_path)}).same_data


def test_bits_do_not_depend_on_workers(home: Path, tmp_path: Path) -> None:
    one, two = (
        finished(tmp_path / str(workers), f"fleet.start='{home}'", workers=workers)
        for workers in (1, 2)
    )
    names = [
        sorted(path.name for path in (run / "learned").glob("*.safetensors")) for run in (one, two)
    ]
    assert names[0] == names[1]


def test_refusals(home: Path, tmp_path: Path) -> None:
    def refused(config: Config) -> str:
        with pytest.raises(CommunisError) as caught:
            clients_of(config).params  # noqa: B018
        return str(caught.value)

    assert "no models are kept" in refused(started(tmp_path / "nowhere"))
    assert "fleet.start = xxx" in refused(started(Path("x" * 4000)))
    without = finished(tmp_path / "without", "run.keep=false")
    assert "no models are kept" in refused(started(without))
    personal = finished(tmp_path / "personal", "method.name=fedper")
    assert "no common model (a part of the model stays with the clients)" in refused(
        started(personal)
    )
    why = refused(started(home, 'fleet.models=["cnn"]'))
    assert "has no common model 'cnn', but cnn_small" in why
    start = Start("run", {"cnn_small": State({"head.weight": torch.zeros(7, 7)})}, {})
    model = clients_of(config_of()).client(0, 0).model
    with pytest.raises(CommunisError, match="nothing of its model cnn_small fits"):
        start.fill(model, "cnn_small")


def test_files_of_a_start_that_lack_something_are_refused(home: Path, tmp_path: Path) -> None:
    run = shutil.copytree(home, tmp_path / "run")
    learned = LearnedFolder(run, RunFolder(run).owner)
    learned.write_index(replace(learned.index(), last=7))
    with pytest.raises(CommunisError, match=r"learned\.json: names no models after round 7"):
        start_of(run, {"name": "synthetic"})
    learned.write_index(LearnedFolder(home, RunFolder(home).owner).index())
    fleet = RunFolder(run).fleet()
    for labels in (None, 3, [3]):
        disk.write_json(run / "fleet.json", {**fleet, "labels": labels})
        with pytest.raises(CommunisError, match=r"fleet\.json: does not name the classes"):
            start_of(run, {"name": "synthetic"})
    disk.write_json(run / "fleet.json", fleet)
    (run / "config.toml").write_text("data = 3", encoding="utf-8")
    assert start_of(run, {"name": "synthetic"}).same_data  # not known


def test_fresh_keeps_the_run_to_start_from(home: Path, tmp_path: Path) -> None:
    run = tmp_path / "c" / "fedavg" / "seed0"
    shutil.copytree(home, run)
    for start, why in ((run, "is among the results"), (tmp_path / "typo", "no models are kept")):
        job = Job(started(start), run)
        with pytest.raises(CommunisError, match=why):
            prepare([job], fresh=True)
        assert len(RunFolder(run).records()) == 2
    prepare([Job(started(home), run)], fresh=True)
    assert not (run / "config.toml").exists()


def test_a_start_that_changed_is_refused(home: Path, tmp_path: Path) -> None:
    start = shutil.copytree(home, tmp_path / "start")
    config = started(start, "run.rounds=2")
    job = Job(config, tmp_path / "run")
    with job.open(config.make_fleet(), workers=1) as run:
        next(iter(run))
    (job.folder / "config.toml").write_text(config.to_toml(), encoding="utf-8")
    refuse_changed_files([job])
    shutil.rmtree(start)
    finished(start, "run.rounds=3")
    with pytest.raises(CommunisError, match=r"models in fleet\.start"):
        refuse_changed_files([job])


def test_more_rounds_give_what_they_would_have_given_at_once(tmp_path: Path) -> None:
    at_once = finished(tmp_path / "at-once", "run.rounds=4")
    later = finished(tmp_path / "later", "run.rounds=2")
    result = CliRunner().invoke(app, ["resume", str(later), "--set", "run.rounds=4", "-q"])
    assert result.exit_code == 0, result.output
    scores = [RunFolder(run).records()[-1].scores for run in (at_once, later)]
    assert scores[0] == scores[1]
    names = [sorted(path.name for path in (run / "learned").iterdir()) for run in (at_once, later)]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("settings", "may"),
    [
        (["privacy.mode=local", "privacy.epsilon=8"], False),
        (["privacy.mode=local", "privacy.noise=0.5"], True),
        (["privacy.mode=local", "privacy.noise=0.5", "privacy.spend=late"], False),
    ],
)
def test_a_budget_that_was_planned_for_its_rounds_gets_no_more_of_them(
    tmp_path: Path, settings: list[str], may: bool
) -> None:
    run = finished(tmp_path / "run", *settings)
    before = (run / "config.toml").read_bytes()
    result = CliRunner().invoke(app, ["resume", str(run), "--set", "run.rounds=3", "-q"])
    assert (result.exit_code == 0) is may, result.output
    assert ((run / "config.toml").read_bytes() != before) is may
    assert len(RunFolder(run).records()) == (3 if may else 2)


@pytest.mark.parametrize("change", ["method.lr=3", "run.rounds=1", "seed=4", "run.rouns=9"])
def test_other_changes_are_refused_and_nothing_is_touched(home: Path, change: str) -> None:
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    result = CliRunner().invoke(app, ["resume", str(home), "--set", change])
    assert result.exit_code != 0
    with pytest.raises(CommunisError):
        begun_in(home, [change])
    assert before == {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}


def test_from_on_the_command_line(home: Path, tmp_path: Path) -> None:
    home = shutil.copytree(home, tmp_path / "run \U0001f600 'quoted'")
    words = ["run", "synthetic", *SMALL, "--into", str(tmp_path), "--name", "b", "-q"]
    result = CliRunner().invoke(app, [*words, "--from", str(home)])
    assert result.exit_code == 0, result.output
    assert load(str(tmp_path / "b" / "config.toml")).fleet.start == str(home)
    fleet = json.loads((tmp_path / "b" / "fleet.json").read_text())
    assert set(fleet["brought"]["start"]) == {"cnn_small"}
    words = ["compare", "local", "fedavg", "--on", "synthetic", *SMALL, "run.rounds=1"]
    result = CliRunner().invoke(
        app,
        [*words, "--seeds", "1", "--into", str(tmp_path), "--name", "c", "--from", str(home)],
    )
    assert result.exit_code == 0, result.output
    assert "begins with the common model of" in " ".join(result.output.split())
