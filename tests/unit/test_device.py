"""Device profiles: RELIEF's presets, measured ones from a file, errors that help."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from communis import CommunisError
from communis.device import PRESETS, find, load

WATCH = """
[watch]
flops = 2_000_000_000
power_active = 1.2
power_idle = 0
power_radio = 0.8
up = 4e6
down = 1e7
"""


def test_the_presets_are_those_of_relief() -> None:
    low, mid, full = (find(f"relief-{name}") for name in ("low", "mid", "full"))
    assert full.flops / mid.flops == pytest.approx(13.1, abs=0.01)
    assert full.flops / low.flops == pytest.approx(55)
    assert [p.power_active for p in (full, mid, low)] == [60, 30, 5]
    testbed = find("relief-low-testbed")
    idle = [p.power_idle for p in (full, mid, testbed)]
    assert idle == pytest.approx([12, 6, 3])
    for profile in PRESETS.values():
        assert profile.power_radio == pytest.approx(0.6 * profile.power_active)
        assert profile.up == profile.down == 20e6
        assert "RELIEF" in profile.source


def test_measured_profiles_are_read_and_go_first(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(WATCH + '[relief-low]\nsource = "bench"\n' + WATCH.split("]")[1])
    measured = load(path)
    watch = find("watch", measured)
    assert (watch.name, watch.flops, watch.power_idle, watch.source) == ("watch", 2e9, 0, "")
    assert type(watch.flops) is float
    assert find("relief-low", measured).source == "bench"
    assert find("relief-mid", measured) == PRESETS["relief-mid"]


def test_an_unknown_name_gets_the_nearest() -> None:
    with pytest.raises(CommunisError, match=r"no device profile 'relief-lo' \(did you mean 'relie"):
        find("relief-lo")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[watch", "not valid TOML"),
        ("flops = 3", "flops stands outside a table"),
        (WATCH.replace("up =", "upp ="), r"unknown key watch.upp \(did you mean 'up'"),
        (WATCH.replace("up = 4e6", ""), r"\[watch\] lacks up"),
        (WATCH.replace("4e6", '"4e6"'), r"watch.up: expected a number, got '4e6'"),
        (WATCH.replace("4e6", "true"), "watch.up: expected a number"),
        (WATCH + "source = 3", "watch.source: expected text"),
        (WATCH.replace("4e6", "0"), "device watch: up must be positive"),
        (WATCH.replace("4e6", "nan"), "up must be positive"),
        (WATCH.replace("1.2", "inf"), "power_active must be positive"),
        (WATCH.replace("= 0.8", "= -1"), "power_radio must be 0 or more"),
    ],
)
def test_bad_files_are_refused_by_file_and_key(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(CommunisError, match=rf"mine\.toml: .*{words}"):
        load(path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(CommunisError, match=r"none\.toml: cannot be read"):
        load(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(CommunisError, match=r"bytes\.toml: cannot be read"):
        load(tmp_path / "bytes.toml")


def test_a_profile_needs_a_name() -> None:
    with pytest.raises(CommunisError, match="needs a name"):
        replace(PRESETS["relief-low"], name="")
