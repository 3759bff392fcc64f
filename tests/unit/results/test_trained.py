"""What a run keeps: models, test predictions, the best round; read back, and damaged."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import communis
from communis import CommunisError
from communis.core.disk import DamagedError
from communis.fleet.fleet import Fleet
from communis.results.finished import read
from communis.results.trained import Trained
from communis.run.best import best_round
from communis.run.config import Config, load
from communis.run.jobs import Job

SMALL = (
    "data.clients=5", "data.windows=30", "data.classes=3", "data.steps=16", "data.channels=2",
    "data.noise=0.5", "run.rounds=4", 'fleet.models=["cnn_small"]', "method.name=fedavg",
    "fleet.roles=[{modalities=['m0'], count=2}, {modalities=['m0', 'm1', 'm2'], count=3}]",
)  # fmt: skip


def config_of(*settings: str) -> Config:
    return load("synthetic", [*SMALL, *settings])


def finished(folder: Path, *settings: str) -> Fleet:
    config = config_of(*settings)
    fleet = config.make_fleet()
    with Job(config, folder).open(fleet, workers=1) as run:
        list(run)
    return fleet


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("trained")
    finished(home / "run")
    return home / "run"


def test_the_common_model_of_fedavg_is_that_of_its_clients(home: Path) -> None:
    trained = Trained(home)
    common = trained.common().network.state_dict()
    for client in trained.clients:
        own = trained.model(client).network.state_dict()
        assert all(torch.equal(common[key], tensor) for key, tensor in own.items())
    files = {own.file for own in trained.index.rounds[4].clients.values()}
    assert len(files) == 2  # one for each kind of client


def test_predictions_give_the_scores_of_the_record(home: Path) -> None:
    kept = Trained(home).predictions()
    said = np.stack(kept["scores"].to_list()).argmax(1)
    accuracy = (said == kept["target"]).groupby(kept["client"]).mean()
    recorded = read(home).by_client("accuracy")
    assert np.allclose(accuracy.sort_index(), recorded.sort_index())


def test_the_best_round_is_that_of_the_selection_common(tmp_path: Path) -> None:
    finished(tmp_path, "method.lr=0.5", "run.rounds=6")
    trained = Trained(tmp_path)
    run = read(tmp_path)
    best = best_round(run.records)
    assert trained.index.best == best
    assert trained.number("last") == 6
    kept = trained.predictions("best")
    assert set(kept["round"]) == {best}
    said = np.stack(kept["scores"].to_list()).argmax(1)
    accuracy = (said == kept["target"]).groupby(kept["client"]).mean().mean()
    assert accuracy == pytest.approx(run.final("accuracy", "common"))


def test_an_interrupted_run_keeps_the_same(tmp_path: Path) -> None:
    settings = ("method.name=fedper", "method.lr=0.5", "run.rounds=6", "run.checkpoint_every=2")
    finished(tmp_path / "whole", *settings)
    config = config_of(*settings)
    for _ in range(6):  # a round at a time, and never closed
        run = Job(config, tmp_path / "parts").open(config.make_fleet(), workers=1)
        for _, _ in zip(range(2), run, strict=False):
            pass
        run.backend.close()
        run.folder.close()
    with Job(config, tmp_path / "parts").open(config.make_fleet(), workers=1) as run:
        list(run)
    whole, parts = (
        {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if "learned" in str(p)
         and p.is_file()}
        for folder in (tmp_path / "whole", tmp_path / "parts")
    )  # fmt: skip
    assert len(whole) >= 6
    assert whole == parts


def test_more_rounds_replace_what_was_kept(tmp_path: Path) -> None:
    finished(tmp_path)
    before = {path.name for path in (tmp_path / "learned").iterdir()}
    finished(tmp_path, "run.rounds=5")
    index = Trained(tmp_path).index
    assert index.last == 5
    after = {path.name for path in (tmp_path / "learned").iterdir()}
    assert "predictions-000005.parquet" in after - before
    named = set()
    for learned in index.rounds.values():
        named |= {learned.predictions, *learned.common.values()}
        named |= {own.file for own in learned.clients.values()}
    assert after == named


def test_nothing_is_kept_if_that_is_asked(tmp_path: Path) -> None:
    finished(tmp_path, "run.keep=false")
    assert not list(tmp_path.glob("learned*"))
    assert not list(tmp_path.glob("best*"))
    with pytest.raises(CommunisError, match=r"no models are kept here: .* run\.keep was false"):
        Trained(tmp_path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    finished(tmp_path, "run.rounds=1")
    trained = Trained(tmp_path)
    file = tmp_path / "learned" / trained.index.rounds[1].clients[0].file
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DamagedError, match=f"{file.name}: is damaged"):
        Trained(tmp_path).model(0)
    file.unlink()
    with pytest.raises(DamagedError, match=f"{file.name}: is gone"):
        Trained(tmp_path).model(0)
    predictions = tmp_path / "learned" / "predictions-000001.parquet"
    predictions.write_bytes(b"PAR1")
    with pytest.raises(DamagedError, match="predictions-000001"):
        Trained(tmp_path).predictions()
    index = tmp_path / "learned.json"
    table = json.loads(index.read_text())
    table["rounds"]["1"]["clients"]["0"]["scales"]["m0"]["mean"][0] += 1
    index.write_text(json.dumps(table))
    with pytest.raises(DamagedError, match=r"learned\.json"):
        Trained(tmp_path).model(0)


def test_refusals_name_what_there_is(home: Path) -> None:
    trained = Trained(home)
    with pytest.raises(CommunisError, match=r"models are kept after round .*4 .*not after 2"):
        trained.model(0, 2)
    with pytest.raises(CommunisError, match=r"no model of client 7 .*; there are 0, 1, 2, 3, 4"):
        trained.model(7)
    with pytest.raises(CommunisError, match="no common model 'gru'; there are cnn_small"):
        trained.common("gru")


def test_from_python(home: Path) -> None:
    results = communis.open(home)
    assert results.config["method"]["name"] == "fedavg"
    model = results.model("3")
    x = {m: torch.randn(4, *shape) for m, shape in model.format.shapes.items()}
    probabilities = model.probabilities(x)
    assert probabilities.shape == (4, 3)
    assert torch.allclose(probabilities.sum(1), torch.ones(4))
    assert set(results.predictions["client"]) == {0, 1, 2, 3, 4}
    assert "fedavg" in results._repr_html_()


def test_one_run_of_several_is_asked_for(tmp_path: Path) -> None:
    for seed in (0, 1):
        finished(tmp_path / str(seed), "run.rounds=1", f"seed={seed}")
    results = communis.open(tmp_path)
    with pytest.raises(CommunisError, match="there are 2 runs, such as method 'fedavg', seed 0"):
        results.model(0)
    assert results.only(seed=1).model(0).client == 0
    with pytest.raises(CommunisError, match="no such run; there are method 'fedavg', seed 0"):
        results.only(method="local")


def test_a_sensor_with_less_detail(tmp_path: Path) -> None:
    roles = "[{modalities=['m0'], count=2, detail='coarse'}, {modalities=['m0', 'm1'], count=3}]"
    fleet = finished(tmp_path, "run.rounds=1", "method.name=local", f"fleet.roles={roles}")
    trained = Trained(tmp_path)
    coarse = next(i for i in trained.clients if fleet.coarse[i])
    model = trained.model(coarse)
    assert model.format.shapes["m0"] == fleet.shapes(coarse)["m0"]
    assert trained.format.shapes["m0"] != model.format.shapes["m0"]


def test_newcomers_models_are_kept(tmp_path: Path) -> None:
    finished(tmp_path, "run.rounds=1", "run.newcomers=[4]")
    trained = Trained(tmp_path)
    assert 4 in trained.clients
    common = trained.common().network.state_dict()
    own = trained.model(4).network.state_dict()
    assert all(torch.equal(common[key], tensor) for key, tensor in own.items())
