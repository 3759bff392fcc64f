"""What sensors report: rates, gaps, ranges by unit, and gravity.

Numbers are gathered recording by recording, so that a dataset need not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from communis.core import Modality
from communis.doctor.finding import Finding, Level
from communis.recordings.recording import Array, Recording, Stream

GRAVITY = {"g": 1.0, "m/s2": 9.81}
STILL = 0.03  # of gravity: an accelerometer that varies less within a second is at rest
# What a sensor worn by a person, or standing in a room, can plausibly report.
PLAUSIBLE = {
    "g": (-20.0, 20.0),
    "m/s2": (-200.0, 200.0),
    "rad/s": (-70.0, 70.0),
    "deg/s": (-4000.0, 4000.0),
    "uT": (-2000.0, 2000.0),
    "gauss": (-20.0, 20.0),
    "bpm": (25.0, 240.0),
    "degC": (0.0, 60.0),
    "uS": (0.0, 120.0),
    "mV": (-50.0, 50.0),
    "uV": (-5000.0, 5000.0),
    "m": (-100.0, 100.0),
}
KINDS = (("g", "m/s2"), ("deg/s", "rad/s"))  # units of one quantity


@dataclass
class Signal:
    """What was seen of one modality."""

    rates: set[float] = field(default_factory=set)
    channels: set[tuple[int, ...]] = field(default_factory=set)
    recordings: int = 0
    values: int = 0
    missing: int = 0
    outside: int = 0
    low: float = np.inf
    high: float = -np.inf
    rest: list[Array] = field(default_factory=list)  # lengths of 3-axis vectors while at rest
    moving: list[Array] = field(default_factory=list)  # the same, whenever
    stuck: list[str] = field(default_factory=list)  # recordings with a channel that never changes

    def add(self, stream: Stream, unit: str, name: str) -> None:
        values = np.asarray(stream.values)
        self.rates.add(stream.rate)
        self.channels.add(values.shape[1:])
        self.recordings += 1
        finite = np.isfinite(values)
        self.values += values.size
        self.missing += values.size - int(finite.sum())
        if not finite.any():
            return
        known = values[finite]
        self.low, self.high = min(self.low, known.min()), max(self.high, known.max())
        if unit in PLAUSIBLE:
            low, high = PLAUSIBLE[unit]
            self.outside += int(((known < low) | (known > high)).sum())
        if stream.kind != "series":
            return
        if len(values) > 10 * stream.rate and np.ptp(values, 0).min() == 0:
            self.stuck.append(name)
        if unit in GRAVITY and values.shape[1] % 3 == 0:
            self._weigh(values, stream.rate, GRAVITY[unit])

    def _weigh(self, values: Array, rate: float, gravity: float) -> None:
        lengths = np.linalg.norm(values.reshape(len(values), -1, 3), axis=2)
        self.moving.append(lengths[:: max(1, len(lengths) // 100)].ravel())
        steps = max(2, round(rate))
        if len(values) < steps:
            return
        seconds = sliding_window_view(values, steps, 0)[::steps].reshape(-1, 3, steps)
        mean = np.linalg.norm(seconds.mean(2), axis=1)
        deviation = seconds.std(2).max(1)
        # Still relative to what is measured, so that a wrong unit is weighed as well.
        still = deviation < STILL * np.maximum(mean, 0.05 * gravity)
        self.rest.append(mean[still & np.isfinite(mean)])


def signals(
    recordings: Iterator[Recording], units: dict[Modality, str], found: dict[Modality, Signal]
) -> Iterator[tuple[Recording, list[Finding]]]:
    """Fills `found` while the recordings pass by; says where streams of one recording differ in
    length."""
    for recording in recordings:
        for m, stream in recording.streams.items():
            found.setdefault(m, Signal()).add(stream, units.get(m, ""), recording.name)
        yield recording, list(_lengths(recording))


def _lengths(recording: Recording) -> Iterator[Finding]:
    ends = {m: s.end for m, s in recording.streams.items() if s.kind == "series"}
    if not ends:
        return
    short, long = min(ends, key=ends.__getitem__), max(ends, key=ends.__getitem__)
    if ends[long] - ends[short] > max(2.0, 0.1 * ends[long]):
        yield Finding(
            "warning",
            "length",
            f"{recording.name}: {short} ends after {ends[short]:.1f} s, {long} after "
            f"{ends[long]:.1f} s",
            "a sensor that stopped, or a wrong rate; the missing part counts as missing",
        )


def judged(found: dict[Modality, Signal], units: dict[Modality, str]) -> Iterator[Finding]:
    for m, signal in sorted(found.items()):
        unit = units.get(m, "")
        yield from _rates(m, signal)
        yield from _gaps(m, signal)
        yield from _range(m, signal, unit)
        if unit in GRAVITY:
            yield _gravity(m, signal, unit)
        if signal.stuck:
            yield Finding(
                "warning",
                m,
                f"a channel never changes in {len(signal.stuck)} of {signal.recordings} "
                f"recordings, first in {signal.stuck[0]}",
                "a stuck sensor or a wrong column",
            )


def _rates(m: Modality, signal: Signal) -> Iterator[Finding]:
    rates = ", ".join(f"{rate:g}" for rate in sorted(signal.rates))
    if len(signal.channels) > 1:
        yield Finding("error", m, f"numbers of channels differ: {sorted(signal.channels)}")
    elif len(signal.rates) > 1:
        yield Finding(
            "warning", m, f"comes at {rates} Hz", "set data.rate, so that windows have one length"
        )
    else:
        shape = "x".join(str(n) for n in next(iter(signal.channels)))
        yield Finding("ok", m, f"{shape} channels at {rates} Hz in {signal.recordings} recordings")


def _gaps(m: Modality, signal: Signal) -> Iterator[Finding]:
    share = signal.missing / max(1, signal.values)
    if share == 1:
        yield Finding("error", m, "holds no number at all", "check the columns of this modality")
    elif share > 0:
        level: Level = "warning" if share > 0.5 else "note"
        yield Finding(level, m, f"{100 * share:.2g} % of the values are missing")


def _range(m: Modality, signal: Signal, unit: str) -> Iterator[Finding]:
    if unit not in PLAUSIBLE or signal.values == signal.missing:
        return
    low, high = PLAUSIBLE[unit]
    share = signal.outside / max(1, signal.values - signal.missing)
    if share > 0.01:
        yield Finding(
            "error",
            m,
            f"{100 * share:.2g} % of the values lie outside {low:g} to {high:g} {unit} "
            f"(found {signal.low:.4g} to {signal.high:.4g})",
            _other_unit(unit) or "check unit and columns",
        )
    elif signal.outside:
        yield Finding(
            "warning",
            m,
            f"{signal.outside} values lie outside {low:g} to {high:g} {unit} "
            f"(found {signal.low:.4g} to {signal.high:.4g})",
            "glitches; clip them or mark them as missing (NaN)",
        )


def _other_unit(unit: str) -> str:
    pair = next((p for p in KINDS if unit in p), None)
    return f"is the unit {pair[1 - pair.index(unit)]}?" if pair else ""


def _gravity(m: Modality, signal: Signal, unit: str) -> Finding:
    """At rest an accelerometer feels gravity and nothing else."""
    rest = np.concatenate(signal.rest) if signal.rest else np.zeros(0)
    at_rest = len(rest) >= 5
    lengths = rest if at_rest else np.concatenate(signal.moving or [np.zeros(0)])
    lengths = lengths[np.isfinite(lengths)]
    if not len(lengths):
        return Finding("note", m, "too short to see gravity")
    seen = float(np.median(lengths)) / GRAVITY[unit]
    when = f"at rest ({len(rest)} s)" if at_rest else "on average (never at rest)"
    text = f"{seen:.2f} g {when}"
    if abs(seen - 1) < (0.1 if at_rest else 0.5):
        return Finding("ok", m, text)
    if abs(seen - 1) < 0.25 and at_rest:
        return Finding("warning", m, f"{text}, expected 1 g", "a sensor out of calibration")
    guesses = {"g": 9.81, "m/s2": 1 / 9.81}
    if abs(seen / guesses[unit] - 1) < 0.3:
        fix = _other_unit(unit)
    elif abs(seen / guesses[unit] - 1000 / guesses[unit]) < 300 / guesses[unit]:
        fix = "is the unit mg? divide by 1000"
    elif seen < 0.3:
        fix = "gravity was removed, or these are not the columns of an accelerometer"
    else:
        fix = "check unit and columns"
    return Finding("error", m, f"{text}, expected 1 g", fix)
