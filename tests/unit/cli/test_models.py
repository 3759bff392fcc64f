"""The models' part of the command line as a user meets it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from communis.cli import main as cli
from communis.cli.models import app
from communis.core.errors import CommunisError
from communis.models.zoo import PURPOSE, ZOO
from communis.run.backends.machine import one_thread

CSI = ("--window", "1,1000,242", "--outputs", "20")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


def call(*arguments: str, of: Any = app) -> str:
    result = CliRunner().invoke(of, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_models_are_listed_with_their_purpose() -> None:
    text = call("models", of=cli.app)
    assert ["cnn", "128", *PURPOSE["cnn"].split()] in lines(text)
    assert ["tpn", "384", *PURPOSE["tpn"].split()] in lines(text)
    assert "communis models show NAME" in text
    found = json.loads(call("--json"))
    assert found["event"] == "models"
    assert list(found["models"]) == list(ZOO)
    assert found["models"]["large_convnet4"] == {
        "embedding": 256,
        "for": PURPOSE["large_convnet4"],
    }


def test_table_ii_of_fedapa_comes_out() -> None:
    text = call("models", "show", "large_convnet4", *CSI, of=cli.app)
    for line in (
        "encoders.sensor.blocks.0.conv Conv2d 16 x 500 x 121 144",
        "encoders.sensor.blocks.3.norm BatchNorm2d 128 x 63 x 16 256",
        "encoders.sensor.blocks.4.conv Conv2d 256 x 32 x 8 294,912",
        "encoders.sensor.embed Linear 256 65,792",
        "head.out Linear 20 5,140",
        "parameters 463,748",
    ):
        assert line.split() in lines(text)
    assert "606.349 with elementwise work, 600.588 without" in text
    assert "show" not in text  # the list is not shown as well


def test_the_same_for_programs() -> None:
    found = json.loads(call("show", "middle_convnet4", "--window", "2,9", "--json"))
    assert found["event"] == "model"
    assert found["windows"] == {"sensor": [2, 9]}
    assert (found["outputs"], found["embedding"]) == (10, 256)
    first = {"path": "encoders.sensor.blocks.0.conv", "kind": "Conv2d"}
    assert found["layers"][0] == {**first, "output": [16, 1, 5], "parameters": 2 * 16 * 3}
    assert sum(layer["parameters"] for layer in found["layers"]) == found["parameters"]
    assert found["trained"] == found["parameters"]
    assert 0 < found["flops"] < found["flops_elementwise"]


@pytest.mark.parametrize("name", [n for n, kind in ZOO.items() if kind.encoder != "moment"])
def test_every_model_can_be_looked_into(name: str) -> None:
    """With a series, a picture and a single step."""
    windows = [part for text in ("3,64", "1,16,12", "420,1") for part in ("--window", text)]
    found = json.loads(call("show", name, *windows, "--outputs", "7", "--json"))
    layers = {layer["path"]: layer for layer in found["layers"]}
    assert sum(layer["parameters"] for layer in layers.values()) == found["parameters"]
    assert layers["head.out"]["output"] == [7]
    for sensor in ("sensor1", "sensor2", "sensor3"):
        assert any(path.startswith(f"encoders.{sensor}.") for path in layers)
    assert all(layer["output"] for layer in layers.values())
    assert (found["trained"] < found["parameters"]) == ZOO[name].pretrained


def test_what_is_frozen_is_said() -> None:
    assert "parameters  83,658, of which 11,914 are trained" in call("show", "tiny_lora")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cmm"], "no architecture 'cmm'; there are cnn_small, cnn"),
        (["cnn", "--window", "420"], "--window 420: expected channels,steps or channels,rows"),
        (["cnn", "--window", "1,2,3,4"], "--window 1,2,3,4: expected channels,steps"),
        (["cnn", "--window", "3,0"], "--window 3,0: expected .* all at least 1"),
        (["cnn", "--window", "3,x"], "--window 3,x: expected .* as in --window 3,128"),
        (["tiny_lora", "--weights", "none.safetensors"], r"none\.safetensors"),
    ],
)
def test_what_cannot_be_shown_is_refused(arguments: list[str], words: str) -> None:
    with pytest.raises(CommunisError, match=words):
        call("show", *arguments)


def test_help_teaches() -> None:
    text = " ".join(call("show", "--help").replace("│", " ").split())
    assert "a multiply-add counts as 2" in text
    assert "Example: communis models show large_convnet4 --window 1,1000,242" in text
    assert "show the layers of one with `models show`" in call("--help")
