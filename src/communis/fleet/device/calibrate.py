"""What a device really reaches: FLOP/s of a piece of training, and watts where the system counts
energy."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from communis.fleet.device.profiles import DeviceProfile

POWERCAP = Path("/sys/class/powercap")  # Linux; Intel and AMD alike
ACTIVE, LINK = 15.0, 20e6  # W and bit/s where nothing is known
IDLE, RADIO = 0.2, 0.6  # of the active power, as the presets have it


@dataclass(frozen=True)
class Speed:
    """What several repetitions reached, in FLOP/s."""

    repetitions: Sequence[float]

    @property
    def best(self) -> float:
        """What the device can do: other programs only ever slow it down. Four digits are true."""
        return float(f"{max(self.repetitions):.4g}")

    @property
    def spread(self) -> float:
        """How far the slowest repetition lies below the best, as a share of it."""
        return 1 - min(self.repetitions) / max(self.repetitions)


def repeat(
    work: Callable[[], object],
    flops: float,
    seconds: float,
    repetitions: int,
    now: Callable[[], float] = time.perf_counter,
) -> Iterator[float]:
    """Does the work, which costs so many FLOPs, over and over for so many seconds; the FLOP/s of
    every repetition. The first time, which warms up, does not count."""
    work()
    for _ in range(repetitions):
        start, times, elapsed = now(), 0, 0.0
        while elapsed < seconds / repetitions or not times:
            work()
            times, elapsed = times + 1, now() - start
        yield times * flops / elapsed


class Energy:
    """Joules that the processor has used so far, by the system's own counters (RAPL)."""

    def __init__(self, folder: Path = POWERCAP) -> None:
        self._counters = [path for path in sorted(folder.glob("intel-rapl:*")) if _package(path)]
        self.readable = bool(self._counters)
        self._last: dict[Path, int] = {}
        self._total = 0.0
        try:
            self._last = {path: _number(path / "energy_uj") for path in self._counters}
        except OSError:  # often only for root
            self.readable = False

    def joules(self) -> float:
        """Since this object was made. A counter starts again at its limit, after about an hour."""
        for path, before in self._last.items():
            count = _number(path / "energy_uj")
            around = _number(path / "max_energy_range_uj") if count < before else 0
            self._total += (count - before + around) / 1e6
            self._last[path] = count
        return self._total


def _package(path: Path) -> bool:
    """A whole processor: no part of one, and not the whole computer, which would count twice."""
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
    """A profile whose source says which numbers were measured, given and assumed. `given` goes
    first; keys are fields of a profile."""
    active = {"power_active": ACTIVE, **measured, **given}["power_active"]
    assumed = {
        "power_active": active,
        "power_idle": IDLE * active,
        "power_radio": RADIO * active,
        "up": LINK,
        "down": LINK,
    }
    rest = [key for key in assumed if key not in measured and key not in given]
    words = [
        f"measured: flops ({what}; best of {len(speed.repetitions)}, the slowest "
        f"{100 * speed.spread:.0f} % below)",
        *(f"{key} (energy counters, processor only)" for key in measured if key not in given),
        f"given: {', '.join(given)}" if given else "",
        f"assumed: {', '.join(rest)}" if rest else "",
    ]
    numbers = {**assumed, **measured, **given}
    return DeviceProfile(name, speed.best, **numbers, source="; ".join(filter(None, words)))
