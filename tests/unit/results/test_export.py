"""Exported models: the file predicts what the trained model predicts, for every architecture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from communis import CommunisError
from communis.cli.main import app
from communis.core.extras import EXTRAS
from communis.models.zoo import ZOO
from communis.results.export import check
from communis.results.export.card import Card
from communis.results.export.check import compared
from communis.results.export.files import KINDS, Kind, metadata_of, outputs_of, write
from communis.results.finished import read
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


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        *(pytest.param(m, "onnx", marks=() if m == QUICK else pytest.mark.slow) for m in MODELS),
        pytest.param(QUICK, "pt2"),
        # An ONNX file is made from the program that a pt2 file holds.
        *(pytest.param(m, "pt2", marks=pytest.mark.slow) for m in (*NOT_IN_ONNX, "cnn_gru")),
    ],
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
    with pytest.raises(CommunisError, match="its model would differ from the trained one by"):
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
def test_command(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_onnx(kind)
    monkeypatch.chdir(tmp_path)
    trained(tmp_path / "run", "cnn", 'fleet.models=["cnn_small"]')
    path = Path(f"model.{kind}")
    words = ["export", "run", "--common", "--to", kind, "-o", str(path)]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert f"its model card model.{kind}.md" in result.output
    about = metadata_of(path, kind)
    assert about["method"] == "fedavg"
    assert about["whose"] == "the common model"
    assert about["normalised_by"] == "the fleet's training windows"
    assert about["sensors"]["m0"]["shape"] == [3, 64]
    assert about["classes"] == ["0", "1", "2"]
    card = Path(f"model.{kind}.md").read_text("utf-8")
    assert "| accuracy |" in card
    assert "not DP" in card
    space = called(card)
    assert space["about"] == about
    if kind == "safetensors":
        assert {"network.head.out.weight", "_scales.m0.mean"} <= {*space["tensors"]}
    else:
        assert tuple(space["probabilities"].shape) == (5, 3)


def called(card: str) -> dict[str, Any]:
    """What the program on a card computes, as it stands there."""
    program = card.partition("```python\n")[2].partition("```")[0]
    space: dict[str, Any] = {}
    exec(program, space)
    return space


@pytest.mark.parametrize("kind", ["onnx", "pt2"])
def test_sensors_that_are_all_missing_but_one(kind: Kind, tmp_path: Path) -> None:
    needs_onnx(kind)
    predictor = trained(tmp_path / "run", "cnn").common()
    path = tmp_path / f"model.{kind}"
    write(predictor, kind, path, {})
    for there in (*predictor.modalities, ""):
        inputs, present = windows(predictor, 3)
        for m in predictor.modalities:
            if m != there:
                inputs[m] = torch.full_like(inputs[m], torch.nan)
            present[m] = torch.full_like(present[m], m == there)
        expected = predictor(inputs, present)
        assert torch.isfinite(expected).all()
        found = outputs_of(path, kind, inputs, present)
        assert torch.allclose(found, expected, rtol=0, atol=check.LARGEST)


def test_the_state_that_a_method_predicts_with_is_in_the_file(tmp_path: Path) -> None:
    predictor = trained(tmp_path / "run", "cnn", "method.name=fedproto").model(0)
    path = tmp_path / "model.safetensors"
    write(predictor, "safetensors", path, {})
    assert load_file(path)["state.C"].shape[0] == 3


def test_no_file_is_replaced_and_none_stays_that_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(tmp_path / "run", "cnn")
    path = tmp_path / "model.pt2"
    words = ["export", str(tmp_path / "run"), "--client", "0", "--to", "pt2", "-o", str(path)]
    for taken in (path, tmp_path / "model.pt2.md"):
        taken.write_text("mine")
        result = CliRunner().invoke(app, words)
        assert f"{taken}: there is such a file" in str(result.exception)
        assert taken.read_text() == "mine"
        taken.unlink()
    result = CliRunner().invoke(app, [*words[:-1], str(tmp_path / "none" / "model.pt2")])
    assert "none: no such folder" in str(result.exception)
    monkeypatch.setattr(check, "LARGEST", -1.0)
    result = CliRunner().invoke(app, words)
    assert "its model would differ" in str(result.exception)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run"]


def test_names_from_elsewhere_are_shown_as_they_are(tmp_path: Path) -> None:
    learned = trained(tmp_path / "run", "cnn")
    learned.__dict__["format"] = replace(
        learned.format,
        labels=("<b>sit</b>", "a|b`c", "new\nline\x1b[31m"),
        units={"m0": "m/s|", "m1": ""},
    )
    predictor = learned.model(0)
    name = "model`<i>.onnx"
    page = Card(read(tmp_path / "run"), predictor, 1, "client 0", "nothing", None, "onnx")
    text = page.text(name, "checked")
    assert r"0 \<b\>sit\</b\>, 1 a\|b\`c, 2 new\\nline\\x1b\[31m." in text
    assert "\x1b" not in text
    assert r"# model\`\<i\>.onnx" in text
    assert r"| m/s\| |" in text


def test_refusals(tmp_path: Path) -> None:
    trained(tmp_path / "run", "cnn", "method.name=fedper")
    for words, expected in [
        (["--common"], "fedper has no common model"),
        (["--client", "5"], "no client '5'; there are 0, 1"),
        (["--client", "0", "-o", "x.pt"], "ends in .onnx"),
        (["--client", "0", "--model", "cnn"], "--model is for --common"),
        ([], "whose model"),
    ]:
        result = CliRunner().invoke(app, ["export", str(tmp_path / "run"), *words])
        assert isinstance(result.exception, CommunisError)
        assert expected in str(result.exception)
