"""Measuring a device: speed by a watch that the test holds, power by counters that it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from communis.fleet.device.calibrate import Energy, Speed, profile, repeat


class Watch:
    """Shows what time it is; every piece of work takes as long as the next entry says."""

    def __init__(self, *durations: float) -> None:
        self.time, self.durations, self.done = 0.0, list(durations), 0

    def now(self) -> float:
        return self.time

    def work(self) -> None:
        self.time += self.durations[min(self.done, len(self.durations) - 1)]
        self.done += 1


def test_speed_is_work_per_second_without_the_warm_up() -> None:
    watch = Watch(50.0, 0.5)
    rates = list(repeat(watch.work, 3e9, seconds=4.0, repetitions=2, now=watch.now))
    assert rates == pytest.approx([6e9, 6e9])
    assert watch.done == 1 + 4 + 4  # two seconds each


def test_the_best_repetition_counts_and_the_spread_is_said() -> None:
    watch = Watch(1.0, 2.0, 1.0, 4.0)
    rates = list(repeat(watch.work, 8e9, seconds=0.0, repetitions=3, now=watch.now))
    assert rates == pytest.approx([4e9, 8e9, 2e9])  # at least once each
    speed = Speed(rates)
    assert (speed.best, speed.spread) == (8e9, pytest.approx(0.75))
    assert Speed([123456789.0]).best == 123500000.0
    assert Speed([5.0]).spread == 0.0


def counter(folder: Path, name: str, kind: str, count: int, limit: int = 1000) -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "name").write_text(f"{kind}\n")
    (path / "energy_uj").write_text(f"{count * 10**6}\n")
    (path / "max_energy_range_uj").write_text(f"{limit * 10**6}\n")
    return path / "energy_uj"


def test_energy_is_that_of_all_processors_and_survives_the_end_of_a_counter(
    tmp_path: Path,
) -> None:
    first = counter(tmp_path, "intel-rapl:0", "package-0", 100)
    second = counter(tmp_path, "intel-rapl:1", "package-1", 990)
    part = counter(tmp_path, "intel-rapl:0:0", "core", 10)
    whole = counter(tmp_path, "intel-rapl:2", "psys", 10)
    energy = Energy(tmp_path)
    assert energy.readable
    assert energy.joules() == 0.0
    first.write_text("130000000")
    second.write_text("20000000")  # it started again at 1000 J
    part.write_text("999000000")
    whole.write_text("999000000")
    assert energy.joules() == pytest.approx(30 + 30)
    assert energy.joules() == pytest.approx(60)
    second.write_text("25000000")
    assert energy.joules() == pytest.approx(65)


def test_without_readable_counters_there_is_no_energy(tmp_path: Path) -> None:
    assert not Energy(tmp_path / "none").readable
    counter(tmp_path, "intel-rapl:0", "package-0", 1).unlink()  # as good as forbidden
    assert not Energy(tmp_path).readable
    (tmp_path / "intel-rapl:0" / "name").unlink()
    assert not Energy(tmp_path).readable


def test_a_profile_says_where_its_numbers_come_from() -> None:
    speed = Speed([8e9, 1e10])
    assumed = profile("box", speed, "cnn", {}, {})
    assert (assumed.flops, assumed.power_active, assumed.up, assumed.down) == (1e10, 15, 2e7, 2e7)
    assert (assumed.power_idle, assumed.power_radio) == (3, 9)
    assert assumed.source == (
        "measured: flops (cnn; best of 2, the slowest 20 % below); "
        "assumed: power_active, power_idle, power_radio, up, down"
    )
    watts = {"power_idle": 4.0, "power_active": 40.0}
    mixed = profile("box", speed, "cnn", watts, {"power_idle": 5.0, "up": 1e6})
    assert (mixed.power_active, mixed.power_idle, mixed.power_radio) == (40, 5, 24)
    assert mixed.source.split("; ", 2)[2] == (
        "power_active (energy counters, processor only); given: power_idle, up; "
        "assumed: power_radio, down"
    )
    everything = {
        "power_active": 1.0,
        "power_idle": 0.0,
        "power_radio": 2.0,
        "up": 3.0,
        "down": 4.0,
    }
    assert "assumed" not in profile("box", speed, "cnn", watts, everything).source
