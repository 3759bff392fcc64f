"""The device clock: closed forms, synchronous rounds, energy."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from communis import CommunisError
from communis.core.contract import TrainingCost
from communis.core.settings import build
from communis.fleet.device import PRESETS, Clock, ClockConfig, DeviceProfile, FullModel, Used, load
from communis.models.flops import StepFlops
from communis.run.config import Config

FAST = DeviceProfile("fast", 4e9, 10.0, 1.0, 5.0, up=8e6, down=16e6)
SLOW = DeviceProfile("slow", 1e9, 2.0, 0.5, 1.0, up=1e6, down=2e6)
PROFILES = {"fast": FAST, "slow": SLOW}
WHOLE = {"": FullModel(1e6, 10), "large": FullModel(5e6, 20)}


def clock(mode: str = "flop_prop", share: float = 1.0) -> Clock:
    return Clock(build(ClockConfig, {"mode": mode, "share": share}, "clock"), PROFILES, WHOLE)


def trained(windows: float, groups: float) -> Mapping[str, float]:
    return {"windows": windows, "group_windows": windows * groups}


def test_flop_prop_charges_the_whole_forward_pass_and_twice_it_by_groups() -> None:
    # 500 windows x (1 + 2 x 4 / 10) MFLOP at 4 GFLOP/s
    assert clock().compute("fast", trained(500, 4)) == pytest.approx(500 * 1.8e6 / 4e9)
    assert clock(share=0.5).compute("fast", trained(500, 4)) == pytest.approx(500 * 1.8e6 / 2e9)
    assert clock().compute("fast", {"loss": 1.0}) == 0.0
    # of another architecture: 500 windows x 5 x (1 + 2 x 4 / 20) MFLOP
    assert clock().compute("fast", trained(500, 4), "large") == pytest.approx(500 * 7e6 / 4e9)


def test_exact_charges_what_was_computed() -> None:
    log = {**trained(500, 4), "flops_forward": 3e8, "flops_backward": 5e8}
    assert clock("exact").compute("slow", log) == pytest.approx(0.8)
    assert clock("exact", 0.25).compute("slow", log) == pytest.approx(3.2)
    assert clock("exact").compute("slow", {}) == 0.0


def test_pace_agrees_with_the_time_of_a_whole_training() -> None:
    cost = StepFlops(forward=3e5, backward=6e5)
    pace = clock("flop_prop", 0.5).pace("fast", cost, 6)
    assert astuple(pace) == pytest.approx((1e6 / 2e9, 0.2e6 / 2e9))
    seconds = 70 * (pace.forward + 6 * pace.group)
    assert seconds == pytest.approx(clock("flop_prop", 0.5).compute("fast", trained(70, 6)))
    exact = clock("exact").pace("slow", cost, 6)
    assert exact == TrainingCost(3e5 / 1e9, 1e5 / 1e9)
    log = {"flops_forward": 70 * cost.forward, "flops_backward": 70 * cost.backward}
    assert 70 * (exact.forward + 6 * exact.group) == pytest.approx(
        clock("exact").compute("slow", log)
    )


def test_a_round_ends_with_its_slowest_client() -> None:
    used = [
        Used(3, "fast", trained(1000, 10), down=2_000_000, up=1_000_000),
        Used(5, "slow", trained(1000, 5), down=500_000, up=250_000),
    ]
    one, other = clock().round(used)
    assert astuple(one)[:4] == pytest.approx((3, 0.75, 1.0, 1.0))
    assert astuple(other)[:4] == pytest.approx((5, 2.0, 2.0, 2.0))
    assert (one.idle, other.idle) == (pytest.approx(3.25), 0.0)
    assert one.joules == pytest.approx(10 * 0.75 + 5 * 2.0 + 1 * 3.25)
    assert other.joules == pytest.approx(2 * 2.0 + 1 * 4.0)
    assert clock().round([]) == []


def test_equal_devices_never_wait() -> None:
    used = [Used(i, "slow", trained(333, 7), 12_345, 6_789) for i in range(5)]
    spent = clock().round(used)
    assert [s.idle for s in spent] == [0.0] * 5
    assert len({s.joules for s in spent}) == 1


def test_energy_adds_up_over_clients_and_activities() -> None:
    """Who waits changes only the idle part; alone, a client has none."""
    used = [
        Used(0, "fast", trained(200, 10), 40_000, 10_000),
        Used(1, "slow", trained(200, 3), 40_000, 10_000),
    ]
    together = clock().round(used)
    alone = [clock().round([one])[0] for one in used]
    end = max(s.compute + s.down + s.up for s in together)
    for with_others, by_itself, profile in zip(together, alone, (FAST, SLOW), strict=True):
        assert by_itself.idle == 0.0
        seconds = (with_others.compute, with_others.down, with_others.up, with_others.idle)
        assert sum(seconds) == pytest.approx(end)
        waiting = profile.power_idle * with_others.idle
        assert with_others.joules == pytest.approx(by_itself.joules + waiting)


def test_the_speedups_of_relief_on_pamap2_to_the_digit() -> None:
    """Full, acc+gyro and acc-only devices train 14, 8 and 5 of 14 groups with V1, and 14, 8 and 3
    with a coverage of .6; FedAvg trains all everywhere. Communication is left out."""
    names = ("relief-full", "relief-mid", "relief-low")
    timer = Clock(ClockConfig(), PRESETS, {"": FullModel(6.7e6, 14)})

    def seconds(*groups: int) -> float:
        used = [
            Used(i, name, trained(2000, g), 0, 0)
            for i, (name, g) in enumerate(zip(names, groups, strict=True))
        ]
        return max(s.compute for s in timer.round(used))

    fedavg = seconds(14, 14, 14)
    assert fedavg / seconds(14, 8, 5) == pytest.approx(1.75, abs=1e-9)
    assert fedavg / seconds(14, 8, 3) == pytest.approx(2.10, abs=1e-9)
    assert round(fedavg / seconds(14, 8, 5), 2) == 1.75
    assert round(fedavg / seconds(14, 8, 3), 2) == 2.10


def test_only_ratios_of_speeds_count_for_speedups() -> None:
    """The share scales compute of all devices alike."""
    half = clock(share=0.5)
    for device in PROFILES:
        log = trained(10, 3)
        assert half.compute(device, log) == pytest.approx(2 * clock().compute(device, log))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"mode": "flops"}, r"clock.mode: .*'flop_prop'"),
        ({"share": 0.0}, r"\[clock\] share must be in \(0, 1\], got 0.0"),
        ({"share": 1.5}, "got 1.5"),
        ({"kappa": 1.0}, "unknown key clock.kappa"),
    ],
)
def test_bad_settings_are_refused_by_key(table: dict[str, object], words: str) -> None:
    with pytest.raises(CommunisError, match=words):
        build(ClockConfig, table, "clock")


def test_settings_are_checked_without_a_file_too() -> None:
    with pytest.raises(CommunisError, match="mode must be one of 'flop_prop', 'exact', got 'fast'"):
        replace(ClockConfig(), mode="fast")  # type: ignore[arg-type]


PAGE = (Path(__file__).parents[4] / "docs" / "guides" / "devices.md").read_text("utf-8")


def test_the_tables_of_the_page_are_read(tmp_path: Path) -> None:
    config, profiles = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    assert build(Config, tomllib.loads(config), "").clock == ClockConfig("exact", 1.0)
    path = tmp_path / "devices.toml"
    path.write_text(profiles)
    assert load(path)["my-watch"].down == 10e6


def test_the_page_has_every_preset() -> None:
    for name, profile in PRESETS.items():
        line = next(line for line in PAGE.splitlines() if f"`{name}`" in line)
        assert f"{profile.flops / 1e12:.3g}" in line
        assert f"{profile.power_active:g}" in line
