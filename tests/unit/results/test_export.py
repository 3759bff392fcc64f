"""Exported models: the file predicts what the trained model predicts, for every architecture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from communis import CommunisError
from communis.cli.main import app
from communis.core.extras import EXTRAS
from communis.models.zoo import ZOO
from communis.results.export import check
from communis.results.export.check import compared
from communis.results.export.files import KINDS, Kind, metadata_of, outputs_of, write
from communis.results.predictor import Predictor
from communis.results.trained import Trained
from communis.run.config import load
from communis.run.jobs import Job

SMALL = (
    "data.clients=2", "data.windows=20", "data.classes=3", "data.modalities=2", "data.missing=0.2",
    "run.rounds=1", "fleet.roles=[]",
)  # fmt: skip
# moment_lora needs weights that are not here.
MODELS = [name for name in ZOO if name != "moment_lora"]
QUICK = "cnn"
NOT_IN_ONNX = ("sglt", "sglt_paper")  # their gate is an eigendecomposition


def trained(folder: Path, model: str, *settings: str) -> Trained:
    weights = ["fleet.weights=random"] if ZOO[model].pretrained else []
    config = load("synthetic", [*SMALL, f'fleet.models=["{model}"]', *weights, *settings])
    with Job(config, folder).open(config.make_fleet(), workers=1) as run:
        list(run)
    return Trained(folder)


def windows(predictor: Predictor, count: int) -> tuple[dict[str, torch.Tensor], ...]:
    generator = torch.Generator().manual_seed(count)
    inputs = {}
    present = {}
    for m in predictor.modalities:
        inputs[m] = torch.randn(count, *predictor.format.shapes[m], generator=generator)
        present[m] = torch.rand(count, generator=generator) > 0.3
    return inputs, present


def agrees(predictor: Predictor, path: Path, kind: Kind) -> None:
    for count in (1, 7):
        inputs, present = windows(predictor, count)
        expected = predictor(inputs, present)
        found = outputs_of(path, kind, inputs, present)
        scale = max(1.0, float(expected.abs().max()))
        assert float((found - expected).abs().max()) <= check.LARGEST * scale


def needs_onnx(kind: str) -> None:
    if kind == "onnx" and not EXTRAS["export"].installed:
        pytest.skip("the extra `export` is not installed")


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
@pytest.mark.parametrize(
    "model", [pytest.param(m, marks=() if m == QUICK else pytest.mark.slow) for m in MODELS]
)
def test_every_architecture(model: str, kind: Kind, tmp_path: Path) -> None:
    needs_onnx(kind)
    learned = trained(tmp_path / "run", model)
    predictor = learned.model(0)
    path = tmp_path / f"model.{kind}"
    if kind == "onnx" and model in NOT_IN_ONNX:
        with pytest.raises(CommunisError, match="an operation that ONNX does not have"):
            write(predictor, kind, path, {})
        assert not path.exists()
        return
    write(predictor, kind, path, {"name": model})
    agrees(predictor, path, kind)
    found = compared(learned, predictor, path, kind)
    assert found.real
    assert metadata_of(path, kind) == {"name": model}


def test_tensors_alone(tmp_path: Path) -> None:
    predictor = trained(tmp_path / "run", "cnn").model(1)
    path = tmp_path / "model.safetensors"
    write(predictor, "safetensors", path, {"name": "cnn"})
    tensors = load_file(path)
    assert all(torch.equal(tensors[key], t) for key, t in predictor.state_dict().items())
    assert metadata_of(path, "safetensors") == {"name": "cnn"}


def test_another_model_in_the_file_is_refused(tmp_path: Path) -> None:
    learned = trained(tmp_path / "run", "cnn", "method.name=local")
    path = tmp_path / "model.pt2"
    write(learned.model(0), "pt2", path, {})
    with pytest.raises(CommunisError, match="its model differs from the trained one by"):
        compared(learned, learned.model(1), path, "pt2")


def test_without_the_data_made_windows_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned = trained(tmp_path / "run", "cnn")
    predictor = learned.model(0)
    path = tmp_path / "model.pt2"
    write(predictor, "pt2", path, {})

    def absent(_: object) -> None:
        raise CommunisError("no data")

    monkeypatch.setattr("communis.run.config.Config.make_fleet", absent)
    found = compared(learned, predictor, path, "pt2")
    assert not found.real
    assert "made windows" in found.line


@pytest.mark.parametrize("kind", KINDS)
def test_command(kind: Kind, tmp_path: Path) -> None:
    needs_onnx(kind)
    trained(tmp_path / "run", "cnn", 'fleet.models=["cnn_small"]')
    path = tmp_path / f"model.{kind}"
    words = ["export", str(tmp_path / "run"), "--common", "--to", kind, "-o", str(path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "model card" in "".join(result.output.split("\n"))
    about = metadata_of(path, kind)
    assert about["method"] == "fedavg"
    assert about["whose"] == "the common model"
    assert about["sensors"]["m0"]["shape"] == [3, 64]
    assert about["classes"] == ["0", "1", "2"]
    json.dumps(about)
    card = path.with_suffix(".md").read_text()
    assert "| accuracy |" in card
    assert "not DP" in card
    assert f"`{path.name}`" in card or path.name in card


def test_refusals(tmp_path: Path) -> None:
    trained(tmp_path / "run", "cnn", "method.name=fedper")
    for words, expected in [
        (["--common"], "fedper has no common model"),
        (["--client", "5"], "no client '5'; there are 0, 1"),
        (["--client", "0", "-o", "x.pt"], "ends in .onnx"),
        ([], "whose model"),
    ]:
        result = CliRunner().invoke(app, ["export", str(tmp_path / "run"), *words])
        assert isinstance(result.exception, CommunisError)
        assert expected in str(result.exception)
