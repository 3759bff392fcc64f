"""What every method has learned can be used from its folder alone: the model that is read back
predicts for recorded windows what the run predicted for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from communis.fleet.fleet import Fleet
from communis.models import own_sources
from communis.results.predictor import Predictor
from communis.results.trained import Trained
from communis.run.config import Config, load
from communis.run.jobs import Job
from tests.contract.abilities import METHODS

SMALL = (
    "data.clients=4", "data.windows=24", "data.classes=3", "data.steps=16", "data.channels=2",
    "data.missing=0.2", "run.rounds=2", 'fleet.models=["cnn_norm"]', "partition.by=subject",
    "fleet.roles=[{modalities=['m0'], count=1}, {modalities=['m0', 'm1', 'm2'], count=3}]",
)  # fmt: skip


def config_of(*settings: str) -> Config:
    return load("synthetic", [*SMALL, *settings])


def finished(config: Config, folder: Path) -> Fleet:
    """The fleet of a run that was done in this folder."""
    fleet = config.make_fleet()
    with Job(config, folder).open(fleet, workers=1) as run:
        list(run)
    return fleet


def predicted(model: Predictor, fleet: Fleet, client: int) -> torch.Tensor:
    """The predictions for a client's test windows, as they were recorded."""
    windows = fleet.windows
    rows = fleet.test_rows(client)
    inputs = {}
    for m in model.modalities:
        x = np.array(windows.inputs[m][rows])
        if m in windows.present:
            x[~windows.present[m][rows]] = np.nan
        inputs[m] = torch.from_numpy(x)
    with torch.no_grad():
        return model(inputs)


def seen(fleet: Fleet, client: int) -> Any:
    """The test windows that a sensor of the client saw; others are guessed while scoring."""
    rows = fleet.test_rows(client)
    return np.any([fleet.windows.present[m][rows] for m in fleet.suites[client]], axis=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_the_model_predicts_what_the_run_predicted(name: str, tmp_path: Path) -> None:
    predicts_alike(finished(config_of(f"method.name={name}"), tmp_path), tmp_path)


@pytest.mark.parametrize("network", ["Tower", "Frozen", "Summed", "Blocks", "Partly"])
def test_networks_of_the_user_predict_what_the_run_predicted(network: str, tmp_path: Path) -> None:
    """Also those with tensors that are in no state, and so in no file."""
    config = config_of("method.name=fedper", f'fleet.models=["tests.own_networks:{network}"]')
    predicts_alike(finished(config, tmp_path), tmp_path)


def test_another_source_of_a_network_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    finished(config_of('fleet.models=["tests.own_networks:Frozen"]', "run.rounds=1"), tmp_path)
    Trained(tmp_path).model(0)
    assert not caplog.records
    monkeypatch.setattr(own_sources, "digest", lambda _: "another")
    Trained(tmp_path).model(0)
    assert "the source of tests.own_networks:Frozen has changed since it was trained" in caplog.text


def predicts_alike(fleet: Fleet, folder: Path) -> None:
    """Requires that models that are read back give the kept predictions."""
    trained = Trained(folder)
    kept = trained.predictions()
    assert trained.clients == [0, 1, 2, 3]
    for client in trained.clients:
        of_client = kept[kept["client"] == client]
        assert of_client["window"].tolist() == fleet.test_rows(client).tolist()
        assert of_client["target"].tolist() == fleet.windows.target[of_client["window"]].tolist()
        expected = np.stack(of_client["scores"].to_list()).astype(np.float32)
        found = predicted(trained.model(client), fleet, client).numpy()
        rows = seen(fleet, client)
        assert rows.any()
        # Kept in half precision: 11 bits. Batches of other sizes may be rounded otherwise.
        np.testing.assert_allclose(found[rows], expected[rows], rtol=2**-10, atol=2**-14)
