"""Small Sleep-EDF files, byte by byte in the official form: polysomnograms in plain EDF with data
records of 30 s, hypnograms in EDF+C with one data record of no duration that holds all
annotations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

START = "24.04.8916.13.00"
CASSETTE = (
    ("EEG Fpz-Cz", "uV", 100),
    ("EEG Pz-Oz", "uV", 100),
    ("EOG horizontal", "uV", 100),
    ("Resp oro-nasal", "", 1),
    ("EMG submental", "uV", 1),
    ("Temp rectal", "DegC", 1),
    ("Event marker", "", 1),
)
TELEMETRY = (
    ("EEG Fpz-Cz", "uV", 100),
    ("EEG Pz-Oz", "uV", 100),
    ("EOG horizontal", "uV", 100),
    ("EMG submental", "uV", 100),
    ("Marker", "", 10),
)
RECORD = 30  # seconds per data record of a polysomnogram


@dataclass(frozen=True)
class Signal:
    label: str
    unit: str
    per_record: int
    values: np.ndarray  # int16; physical and digital range agree, so this is what is read


def edf(signals: Sequence[Signal], records: int, seconds: float, kind: str, start: str) -> bytes:
    """A whole EDF file."""

    def column(width: int, *cells: object) -> bytes:
        return b"".join(str(cell).encode().ljust(width) for cell in cells)

    n = len(signals)
    head = column(8, 0) + column(80, "X F X Female_33yr", "Startdate 24-APR-1989 X X X")
    head += start.encode() + column(8, 256 * (n + 1)) + column(44, kind)
    head += column(8, records, f"{seconds:g}") + column(4, n)
    head += column(16, *(s.label for s in signals)) + column(80, *("" for _ in signals))
    head += column(8, *(s.unit for s in signals))
    for end in (-32768, 32767, -32768, 32767):  # physical and digital minimum and maximum
        head += column(8, *(end for _ in signals))
    head += column(80, *("" for _ in signals)) + column(8, *(s.per_record for s in signals))
    head += column(32, *("" for _ in signals))
    rows = [s.values.astype("<i2").reshape(records, s.per_record) for s in signals]
    return head + np.concatenate(rows, 1).tobytes()


def values(channel: int, steps: int) -> np.ndarray:
    """What channel number `channel` reads: its thousands tell which channel it is."""
    return (1000 * (channel + 1) + np.arange(steps) // 7 % 1000).astype(np.int16)


def polysomnogram(
    epochs: int, start: str = START, channels: Sequence[tuple[str, str, int]] = CASSETTE
) -> bytes:
    signals = [
        Signal(label, unit, rate * RECORD, values(c, rate * RECORD * epochs))
        for c, (label, unit, rate) in enumerate(channels)
    ]
    return edf(signals, epochs, RECORD, "", start)


def hypnogram(stages: Sequence[tuple[float, float, str]], start: str = START) -> bytes:
    """Onset and duration in seconds and the text of every annotation."""
    text = "+0\x14\x14\x00" + "".join(
        f"+{onset:g}\x15{duration:g}\x14{stage}\x14\x00" for onset, duration, stage in stages
    )
    data = text.encode() + b"\x00" * (len(text) % 2)
    annotations = np.frombuffer(data, "<i2")
    signal = Signal("EDF Annotations", "", len(annotations), annotations)
    return edf([signal], 1, 0, "EDF+C", start)


def night(
    folder: Path,
    stages: Sequence[tuple[float, float, str]],
    epochs: int,
    psg: str = "SC4001E0-PSG.edf",
    scores: str = "SC4001EC-Hypnogram.edf",
    channels: Sequence[tuple[str, str, int]] = CASSETTE,
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / psg).write_bytes(polysomnogram(epochs, channels=channels))
    (folder / scores).write_bytes(hypnogram(stages))
    return folder / psg
