"""Checks on the signals of sensors: rates, gaps, ranges by unit, and gravity.

Statistics are collected recording by recording, so that a dataset need not fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.data.doctor.finding import Finding, Level
from communis.data.recordings.recording import Recording, Stream

GRAVITY = {"g": 1.0, "m/s2": 9.81}
SLOW = 15.0  # deg/s: moving people sometimes turn faster than this
STILL = 0.03  # share of gravity: an accelerometer that varies less within a second is at rest
# Plausible ranges of sensors that a person wears, or that are fixed in a room.
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


@dataclass
class Signal:
    """The statistics of one modality over all recordings."""

    rates: set[float] = field(default_factory=set)
    channels: set[tuple[int, ...]] = field(default_factory=set)
    recordings: int = 0
    values: int = 0
    missing: int = 0
    outside: int = 0  # values outside of the plausible range
    low: float = np.inf
    high: float = -np.inf
    usual: list[float] = field(default_factory=list)  # 99th percentile of |x|, per recording
    rest: dict[int, list[Array]] = field(default_factory=dict)  # by subject: g at rest
    always: dict[int, list[Array]] = field(default_factory=dict)  # by subject: g at rest or not
    odd: list[str] = field(default_factory=list)  # recordings without gravity of 1 g at rest
    stuck: list[str] = field(default_factory=list)  # recordings with a channel that never changes

    def add(self, stream: Stream, unit: str, recording: Recording) -> None:
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
        self.low = min(self.low, known.min())
        self.high = max(self.high, known.max())
        self.usual.append(float(np.percentile(np.abs(known), 99)))
        if unit in PLAUSIBLE:
            low, high = PLAUSIBLE[unit]
            self.outside += int(((known < low) | (known > high)).sum())
        if stream.kind != "series":
            return
        values = np.where(finite, values, np.nan)
        if len(values) >= 2 * stream.rate and _constant(values):
            self.stuck.append(recording.name)
        if unit in GRAVITY and values.shape[1] % 3 == 0:
            self._add_gravity(values / GRAVITY[unit], stream.rate, recording)

    def _add_gravity(self, values: Array, rate: float, recording: Recording) -> None:
        """Adds the lengths of acceleration vectors, at rest and always; `values` are in g."""
        lengths = np.linalg.norm(values.reshape(len(values), -1, 3), axis=2)
        thinned = lengths[:: max(1, len(lengths) // 100)].ravel()
        always = self.always.setdefault(recording.subject, [])
        always.append(thinned[np.isfinite(thinned)])
        steps = max(2, round(rate))
        if len(values) < steps:
            return
        seconds = sliding_window_view(values, steps, 0)[::steps].reshape(-1, 3, steps)
        mean = np.linalg.norm(seconds.mean(2), axis=1)
        # The limit is relative to the measured length, so that a wrong unit is detected, too.
        still = seconds.std(2).max(1) < STILL * np.maximum(mean, 0.05)
        rest = mean[still & np.isfinite(mean)]
        self.rest.setdefault(recording.subject, []).append(rest)
        if len(rest) and np.mean(np.abs(rest - 1) > 0.25) > 0.2:
            self.odd.append(recording.name)


def _constant(values: Array) -> bool:
    """Returns whether a channel with values never changes."""
    known = np.isfinite(values)
    low = np.where(known, values, np.inf).min(0)
    high = np.where(known, values, -np.inf).max(0)
    return bool(((low == high) & known.any(0)).any())


def signals(
    recordings: Iterator[Recording], units: dict[Modality, str], by_modality: dict[Modality, Signal]
) -> Iterator[tuple[Recording, list[Finding]]]:
    """Adds every recording to `by_modality`; yields it with findings about streams of different
    lengths."""
    for recording in recordings:
        for m, stream in recording.streams.items():
            by_modality.setdefault(m, Signal()).add(stream, units.get(m, ""), recording)
        yield recording, list(_lengths(recording))


def _lengths(recording: Recording) -> Iterator[Finding]:
    ends = {m: s.end for m, s in recording.streams.items() if s.kind == "series"}
    if not ends:
        return
    short = min(ends, key=ends.__getitem__)
    long = max(ends, key=ends.__getitem__)
    if ends[long] - ends[short] > max(2.0, 0.1 * ends[long]):
        yield Finding(
            "warning",
            "length",
            f"{recording.name}: {short} ends after {ends[short]:.1f} s, {long} after "
            f"{ends[long]:.1f} s",
            "a sensor that stopped, or a wrong rate; the rest of the stream counts as missing",
        )


def judged(by_modality: dict[Modality, Signal], units: dict[Modality, str]) -> Iterator[Finding]:
    """Yields the findings about every modality."""
    for m, signal in sorted(by_modality.items()):
        unit = units.get(m, "")
        yield from _rates(m, signal)
        yield from _gaps(m, signal)
        yield from _range(m, signal, unit)
        if unit in GRAVITY:
            yield from _gravity(m, signal, unit)
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
        fix = "set data.rate, so that windows have one length"
        yield Finding("warning", m, f"has different rates: {rates} Hz", fix)
    else:
        shape = "x".join(str(n) for n in next(iter(signal.channels)))
        yield Finding("ok", m, f"{shape} channels at {rates} Hz in {signal.recordings} recordings")


def _gaps(m: Modality, signal: Signal) -> Iterator[Finding]:
    share = signal.missing / max(1, signal.values)
    if share == 1:
        yield Finding("error", m, "holds no numbers", "check the columns of this modality")
    elif share > 0:
        level: Level = "warning" if share > 0.5 else "note"
        yield Finding(level, m, f"{100 * share:.2g} % of the values are missing")


def _range(m: Modality, signal: Signal, unit: str) -> Iterator[Finding]:
    if unit not in PLAUSIBLE or not signal.usual:
        return
    low, high = PLAUSIBLE[unit]
    plausible = f"{low:g} to {high:g} {unit}"
    measured = f"(found {signal.low:.4g} to {signal.high:.4g})"
    share = signal.outside / (signal.values - signal.missing)
    usual = float(np.median(signal.usual))
    if share > 0.01:
        text = f"{100 * share:.2g} % of the values are outside {plausible} {measured}"
        fix = "is the unit deg/s?" if unit == "rad/s" else "check unit and columns"
        yield Finding("error", m, text, fix)
    elif unit == "deg/s" and usual < SLOW:
        text = f"99 % of the values are below {usual:.3g} deg/s"
        yield Finding("warning", m, text, "is the unit rad/s?")
    elif signal.outside:
        text = f"{signal.outside} values are outside {plausible} {measured}"
        fix = "glitches, or some subjects in another unit; clip them or mark them as missing (NaN)"
        yield Finding("warning", m, text, fix)


def _gravity(m: Modality, signal: Signal, unit: str) -> Iterator[Finding]:
    """Yields findings about gravity, by subject: an accelerometer at rest measures 1 g."""
    good: list[float] = []
    seconds = 0
    for subject in sorted(signal.always):
        rest = np.concatenate(signal.rest.get(subject, [np.zeros(0)]))
        at_rest = len(rest) >= 5
        lengths = rest if at_rest else np.concatenate(signal.always[subject])
        if not len(lengths):
            continue
        measured = float(np.median(lengths))
        seconds += len(rest)
        if abs(measured - 1) < (0.1 if at_rest else 0.5):
            good.append(measured)
            continue
        when = f"at rest ({len(rest)} s)" if at_rest else "on average (never at rest)"
        text = f"subject {subject}: {measured:.2f} g {when}, expected 1 g"
        if abs(measured - 1) < 0.25:
            yield Finding("warning", m, text, "the sensor may be out of calibration")
        else:
            yield Finding("error", m, text, _guess(measured, unit))
    if signal.odd:
        yield Finding(
            "warning",
            m,
            f"measures less than 0.75 g or more than 1.25 g at rest in {len(signal.odd)} of "
            f"{signal.recordings} recordings, first in {signal.odd[0]}",
            "their range or unit may differ, or was changed during the recording",
        )
    if good:
        when = f"at rest ({seconds} s)" if seconds >= 5 else "on average (never at rest)"
        people = "1 subject" if len(good) == 1 else f"{len(good)} subjects"
        yield Finding("ok", m, f"{np.median(good):.2f} g {when}, {people}")
    elif not signal.always:
        yield Finding("note", m, "not three axes, or too short: gravity was not checked")


def _guess(measured: float, unit: str) -> str:
    """Returns the likely reason why an accelerometer measures `measured` g at rest."""
    ratio = {"g": 9.81, "m/s2": 1 / 9.81}[unit]
    if abs(measured / ratio - 1) < 0.1:
        return "is the unit m/s2?" if unit == "g" else "is the unit g?"
    if abs(measured * GRAVITY[unit] / 1000 - 1) < 0.1:
        return "is the unit mg? divide by 1000"
    if measured < 0.3:
        return "gravity was removed, or these are not the columns of an accelerometer"
    return "check unit and columns"
