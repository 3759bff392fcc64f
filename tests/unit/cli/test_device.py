"""The device part of the command line as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from communis.cli import calibration
from communis.cli.device import app
from communis.core.errors import CommunisError
from communis.fleet.device import PRESETS, find, load

QUICK = ("--name", "box", "--model", "lite", "--seconds", "0.1")


@pytest.fixture(autouse=True)
def _short_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "IDLE", 0.01)


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def events(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_list_shows_presets_and_those_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    numbers = ("flops", "power_active", "power_idle", "power_radio", "up", "down")
    path.write_text("[watch]\n" + "".join(f"{key} = 1e6\n" for key in numbers))
    text = call("list", "--profiles", str(path))
    assert "275,000" in text
    assert "watch: source not given" in text
    assert "relief-low: RELIEF: low-end IoT level" in text
    (found,) = events(call("list", "--json"))
    assert [p["name"] for p in found["profiles"]] == list(PRESETS)
    with pytest.raises(CommunisError, match=r"none\.toml: cannot be read"):
        call("list", "--profiles", str(tmp_path / "none.toml"))


def test_calibrate_writes_a_profile_that_roles_can_name(tmp_path: Path) -> None:
    path = tmp_path / "devices.toml"
    text = call("calibrate", *QUICK, "--into", str(path), "--up", "4e6", "--power-active", "20")
    profile = find("box", load(path))
    assert profile.flops > 1e6
    assert (profile.up, profile.down, profile.power_active) == (4e6, 2e7, 20)
    assert "measured: flops (lite, batch 32, one thread; best of 5" in profile.source
    assert "given: power_active, up" in profile.source
    assert "added [box] in" in text
    *repetitions, last = events(call("calibrate", *QUICK, "--into", str(path), "--json"))
    assert [r["number"] for r in repetitions] == [1, 2, 3, 4, 5]
    assert last["replaced"] is True
    assert last["flops"] == pytest.approx(max(r["flops"] for r in repetitions), rel=1e-3)
    assert load(path)["box"].flops == last["flops"]


@pytest.mark.slow
def test_power_is_measured_where_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        """A joule more every time it is asked."""

        readable, _joules = True, 0.0

        def joules(self) -> float:
            self._joules += 1
            return self._joules

    monkeypatch.setattr(calibration, "Energy", Counting)
    path = tmp_path / "devices.toml"
    call("calibrate", *QUICK, "--into", str(path))
    profile = load(path)["box"]
    assert "power_idle (energy counters" in profile.source
    assert "power_active (energy counters" in profile.source
    assert 0 < profile.power_active <= 10  # one joule in at least a tenth of a second
    assert 0 < profile.power_idle <= 100
    call("calibrate", *QUICK, "--into", str(path), "--power-idle", "3", "--power-active", "4")
    assert "energy counters" not in load(path)["box"].source


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--up", "0"], "device box: up must be positive"),
        (["--into", "nowhere/devices.toml"], "there is no folder .*nowhere; make it first"),
        (["--model", "lit"], "no architecture 'lit'"),
        (["--name", ""], "a device profile needs a name"),
    ],
)
def test_what_cannot_work_is_refused_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calibration, "repeat", pytest.fail)
    with pytest.raises(CommunisError, match=words):
        call("calibrate", *QUICK, *arguments)
    assert not list(tmp_path.iterdir())


def test_a_bad_file_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "repeat", pytest.fail)
    path = tmp_path / "devices.toml"
    path.write_text("[watch]\n")
    with pytest.raises(CommunisError, match=r"devices\.toml: \[watch\] lacks flops"):
        call("calibrate", *QUICK, "--into", str(path))


def test_help_teaches() -> None:
    text = " ".join(call("calibrate", "--help").replace("│", " ").split())
    assert "what is neither measured nor given is assumed" in text.lower()
    assert "Example: communis device calibrate" in text
