"""Device profiles: RELIEF's presets, measured ones from a file, errors that help."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from communis import CommunisError
from communis.fleet.device import PRESETS, find, load, of_fleet, write

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


def test_other_gaps_keep_the_ends_and_the_place_of_the_middle() -> None:
    full, mid = find("relief-full").flops, find("relief-mid").flops
    place = math.log(full / mid) / math.log(55)
    assert place == pytest.approx(0.642, abs=0.0005)
    for gap in (10, 100):
        low, middle = find(f"relief-low-{gap}x"), find(f"relief-mid-{gap}x")
        assert full / low.flops == pytest.approx(gap)
        assert math.log(full / middle.flops) / math.log(gap) == pytest.approx(place)
        assert (low.power_active, middle.power_active) == (5, 30)
        assert "the paper gives no middle device" in middle.source


def test_a_fleet_has_profiles_of_all_its_clients_or_of_none(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(WATCH)
    found = of_fleet(["relief-low", "watch", "relief-low"], load(path))
    assert {name: profile.flops for name, profile in found.items()} == {
        "relief-low": 5e12,
        "watch": 2e9,
    }
    assert of_fleet([]) == of_fleet(["", ""]) == {}
    with pytest.raises(CommunisError, match="clients 0, 2 have no device profile"):
        of_fleet(["", "relief-low", ""])
    with pytest.raises(CommunisError, match="no device profile 'watch'"):
        of_fleet(["watch"])


PHONE = replace(PRESETS["relief-low"], name="phone", source='a "quoted"\nµ-bench \\ of 1 µW \x7f')
COMMENTED = f"""# our devices
{WATCH}  # slow
# bought in May
[ 'tab let' ]  # the big one
{WATCH.split("]")[1]}"""


@pytest.mark.parametrize("name", ["phone", "watch", "tab let", "ein Gerät", "relief-low"])
def test_a_written_profile_joins_the_others_or_takes_the_place_of_one(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(COMMENTED, "utf-8")
    before, new = load(path), replace(PHONE, name=name)
    assert write(path, new) == (name in before)
    assert load(path) == {**before, name: new}
    assert list(load(path)) == list({**before, name: new})  # the order too
    text = path.read_text("utf-8")
    assert "# our devices\n" in text
    assert ("# the big one" in text) == (name != "tab let")
    assert "\n# bought in May\n[" in text
    assert write(path, new)
    assert path.read_text("utf-8") == text
    assert [p.name for p in tmp_path.iterdir()] == ["mine.toml"]


def test_the_first_profile_makes_the_file_and_remarks_stay(tmp_path: Path) -> None:
    assert not write(tmp_path / "new.toml", PHONE)
    assert load(tmp_path / "new.toml") == {"phone": PHONE}
    remarks = tmp_path / "remarks.toml"
    remarks.write_text("# to be measured\n")
    write(remarks, PHONE)
    assert remarks.read_text("utf-8").startswith("# to be measured\n\n[phone]\n")


LINES = WATCH.split("\n")[2:-1]


@pytest.mark.parametrize(
    "text",
    [
        f"watch = {{ {', '.join(LINES)} }}",
        "\n".join(f"watch.{line}" for line in LINES),
        WATCH + 'source = """\n[watch]\nis no header"""\n',
        WATCH + 'source = """\n[phone]\nis no header"""\n',
    ],
)
@pytest.mark.parametrize("name", ["phone", "watch"])
def test_no_way_to_write_toml_loses_a_profile(tmp_path: Path, text: str, name: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    before = load(path)
    write(path, replace(PHONE, name=name))
    assert load(path) == {**before, name: replace(PHONE, name=name)}


def test_a_bad_file_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("[watch]\nflops = 3\n")
    with pytest.raises(CommunisError, match=r"mine\.toml: \[watch\] lacks power_active"):
        write(path, PHONE)
    assert path.read_text() == "[watch]\nflops = 3\n"
    with pytest.raises(CommunisError, match=r"mine\.toml: cannot be written"):
        write(tmp_path / "nowhere" / "mine.toml", PHONE)
