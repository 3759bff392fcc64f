"""Calibration of a device: the FLOP/s that training reaches, and the watts if the system counts
energy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from communis.fleet.device.profiles import DeviceProfile

POWERCAP = Path("/sys/class/powercap")  # Linux; Intel and AMD alike
ACTIVE = 15.0  # W, assumed if not measured
LINK = 20e6  # bit/s, assumed if not given
IDLE, RADIO = 0.2, 0.6  # shares of the active power, as in the presets


@dataclass(frozen=True)
class Speed:
    """The FLOP/s of several repetitions."""

    repetitions: Sequence[float]

    @property
    def best(self) -> float:
        """The fastest repetition, to four digits: other programs can only slow a device down."""
        return float(f"{max(self.repetitions):.4g}")

    @property
    def spread(self) -> float:
        """The distance of the slowest repetition from the best, as a share of the best."""
        return 1 - min(self.repetitions) / max(self.repetitions)


def repeat(
    work: Callable[[], object],
    flops: float,
    seconds: float,
    repetitions: int,
    now: Callable[[], float] = time.perf_counter,
) -> Iterator[float]:
    """Repeats the work, which costs `flops` FLOPs, for `seconds` and yields the FLOP/s of every
    repetition. The first call warms up and does not count."""
    work()
    for _ in range(repetitions):
        start = now()
        times = 0
        elapsed = 0.0
        while elapsed < seconds / repetitions or not times:
            work()
            times += 1
            elapsed = now() - start
        yield times * flops / elapsed


class Energy:
    """The joules that the processor has used, by the system's own counters (RAPL)."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._counters = [path for path in sorted(folder.glob("intel-rapl:*")) if _package(path)]
        self.readable = bool(self._counters)
        self._last: dict[Path, int] = {}
        self._total = 0.0
        try:
            self._last = {path: _number(path / "energy_uj") for path in self._counters}
        except OSError:  # often only root may read them
            self.readable = False

    def joules(self) -> float:
        """Returns the joules since this object was made. A counter wraps around at its limit, after
        about an hour."""
        for path, before in self._last.items():
            count = _number(path / "energy_uj")
            wrapped = _number(path / "max_energy_range_uj") if count < before else 0
            self._total += (count - before + wrapped) / 1e6
            self._last[path] = count
        return self._total


def _package(path: Path) -> bool:
    """Whether the counter is that of a complete processor. Those of its parts, and that of the
    complete computer, would count energy twice."""
    try:
        return (path / "name").read_text().startswith("package")
    except OSError:
        return False


def _number(path: Path) -> int:
    return int(path.read_text())


def profile(
    name: str,
    speed: Speed,
    what: str,
    measured: Mapping[str, float],
    given: Mapping[str, float],
) -> DeviceProfile:
    """Returns a profile whose source states which numbers were measured, given and assumed. Given
    numbers have precedence over measured ones; keys are fields of a profile."""
    active = {"power_active": ACTIVE, **measured, **given}["power_active"]
    assumed = {
        "power_active": active,
        "power_idle": IDLE * active,
        "power_radio": RADIO * active,
        "up": LINK,
        "down": LINK,
    }
    rest = [key for key in assumed if key not in measured and key not in given]
    sources = [
        f"measured: flops ({what}; best of {len(speed.repetitions)}, the slowest "
        f"{100 * speed.spread:.0f} % below)",
        *(f"{key} (energy counters, processor only)" for key in measured if key not in given),
        f"given: {', '.join(given)}" if given else "",
        f"assumed: {', '.join(rest)}" if rest else "",
    ]
    numbers = {**assumed, **measured, **given}
    return DeviceProfile(name, speed.best, **numbers, source="; ".join(filter(None, sources)))
