"""Wifi_csi: people counted from your own Wi-Fi CSI, recorded with Nexmon, ESP32 or Intel 5300.

Your own recordings: one folder per environment (room), one file per recording, whose name starts
with the number of people: room1/3_a.csv, room1/0.npy, bus/12-monday.mat. Files hold packets in
the order of time:

    .npy    complex or amplitude; (packets, subcarriers), (packets, antennas, subcarriers) or
            (packets, tx, rx, subcarriers)
    .mat    the same in a variable `csi`, as from the Intel 5300 tool: (packets, tx, rx, 30)
    .csv    a row per packet, a column per subcarrier: amplitudes, or complex as 1.5-2j or 1.5-2i
    .csv    lines CSI_DATA,...,[imaginary real imaginary real ...] of an ESP32 (ESP32-CSI-Tool,
            esp-csi). The legacy training field is used: the first 64 subcarriers

Packets come at a steady rate that the files do not tell. A line of an ESP32 that was garbled on
its way is a lost packet (NaN); more than one in twenty is refused. Subcarriers without signal
(guard band and the middle) are removed; pilots stay. 256 become 242, as in FedAPA.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from communis.core.arrays import Array
from communis.core.errors import CommunisError
from communis.core.tasks import Counting
from communis.data.recordings.about import About
from communis.data.recordings.files import array, matching, numbers
from communis.data.recordings.matlab import matlab
from communis.data.recordings.recording import Dataset, Recording, Stream
from communis.data.recordings.source import Recorded

ABOUT = About(
    licence="your own",
    files="*/[0-9]*.*",
    how="Record your own: a folder per environment, files that start with the number of people.",
)
# Subcarriers that carry signal, by the number of bins: (first, last) on either side of the middle.
# 802.11ac at 80 and 40 MHz, 802.11n at 20 MHz.
USED = {256: (2, 122), 128: (2, 58), 64: (1, 28)}
LEGACY = (1, 26)  # 802.11a/g, in the legacy training field of every packet
WITHOUT_NULLS = (30, 52, 56, 114, 242)  # Intel 5300, and what the tables above leave
ESP32 = "CSI_DATA"
ESP32_BINS = 64
SECONDARY = 17  # field of an ESP32 line: is there a second channel (40 MHz), below or above?
MOST_BAD = 0.05


@dataclass(frozen=True)
class WifiCsi(Recorded):
    """Settings of `[data] name = "wifi_csi"`. Environments are subjects and scenes, numbered from
    1 in the order of their names."""

    window: float = 10.0  # seconds per window
    packets: float = 100.0  # per second
    most: int = 20  # people; there are most + 1 classes
    nulls: Literal["table", "zeros", "keep"] = "table"  # remove by number, if always 0, or not
    order: Literal["centred", "fft"] = "centred"  # frequencies ascend, or the middle comes first
    phase: bool = False  # also the phase, without offset and slope, as modality csi_phase

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.packets <= 0 or self.most < 1:
            raise CommunisError("wifi_csi: packets and most must be positive")

    def read(self, folder: Path) -> Dataset:
        labels = tuple(str(people) for people in range(self.most + 1))
        units = {"csi": "a.u.", "csi_phase": "rad"} if self.phase else {"csi": "a.u."}
        return Dataset(self._recordings(folder), Counting(len(labels)), labels, units)

    def _recordings(self, folder: Path) -> Iterator[Recording]:
        paths = matching(folder, ABOUT.files)
        environments = sorted({path.parent for path in paths})
        trials: dict[tuple[Path, int], int] = {}
        first: tuple[Path, tuple[tuple[int, ...], bool], Array] | None = None
        for path in paths:
            people = self._people(path)
            csi, legacy = packets(path, self.order)
            if first is None:
                first = path, (csi.shape[1:], legacy), self._kept(path, csi, legacy)
            if (csi.shape[1:], legacy) != first[1]:
                raise CommunisError(
                    f"{path}: (antennas, subcarriers) = {csi.shape[1:]}, but {first[1][0]} in "
                    f"{first[0]}, or another device; keep devices apart, each in a data folder"
                )
            trial = trials[path.parent, people] = trials.get((path.parent, people), 0) + 1
            environment = environments.index(path.parent) + 1
            yield Recording(
                self._streams(path, csi, first[2]),
                people,
                subject=environment,
                scene=environment,
                trial=trial,
                name=path.relative_to(folder).as_posix(),
            )

    def _people(self, path: Path) -> int:
        people = int(re.sub(r"\D.*", "", path.name))
        if people > self.most:
            raise CommunisError(
                f"{path}: {people} people by its name; set data.most to {people} or more"
            )
        return people

    def _kept(self, path: Path, csi: Array, legacy: bool) -> Array:
        """Positions of the subcarriers that stay, decided from the first file."""
        bins = csi.shape[2]
        if self.nulls == "zeros":
            return np.flatnonzero((np.nan_to_num(csi) != 0).any((0, 1)))
        if self.nulls == "keep" or bins in WITHOUT_NULLS:
            return np.arange(bins)
        if bins not in USED:
            raise CommunisError(
                f"{path}: no table of null subcarriers for {bins} of them; set data.nulls to "
                "'zeros' (remove those that are always 0) or 'keep'"
            )
        low, high = LEGACY if legacy else USED[bins]
        distance = np.abs(np.arange(bins) - bins // 2)
        return np.flatnonzero((distance >= low) & (distance <= high))

    def _streams(self, path: Path, csi: Array, kept: Array) -> dict[str, Stream]:
        if self.nulls == "zeros" and np.nan_to_num(np.delete(csi, kept, 2)).any():
            raise CommunisError(
                f"{path}: subcarriers carry signal that were 0 throughout the first file; set "
                "data.nulls to 'table' or 'keep'"
            )
        csi = csi[:, :, kept]
        if not np.iscomplexobj(csi) and (self.phase or (csi < 0).any()):
            raise CommunisError(
                f"{path}: real numbers, {'negative ones' if not self.phase else 'without phase'}; "
                "expected complex values, or amplitudes and data.phase = false"
            )
        streams = {"csi": Stream(np.abs(csi).astype(np.float32), self.packets, kind="csi")}
        if self.phase:
            angle = sanitised(np.angle(csi), kept)
            streams["csi_phase"] = Stream(angle.astype(np.float32), self.packets, kind="csi")
        return streams


def sanitised(phase: Array, subcarriers: Array) -> Array:
    """The phase (..., subcarriers) without what clocks add to it: an offset per packet and, from
    the moment of sampling, a slope over subcarriers."""
    unwrapped = np.unwrap(phase, axis=-1)
    centred = unwrapped - unwrapped.mean(-1, keepdims=True)
    x = subcarriers - subcarriers.mean()
    slope = (centred * x).sum(-1, keepdims=True) / (x**2).sum()
    return np.asarray(centred - slope * x)


def packets(path: Path, order: Literal["centred", "fft"]) -> tuple[Array, bool]:
    """(packets, antennas, subcarriers), frequencies ascending, and whether they are those of a
    legacy training field."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", errors="replace") as lines:
            head = [line for _, line in zip(range(100), lines, strict=False)]
        if any(ESP32 in line for line in head):
            return _esp32(path)[:, None], True
        found = _rows(path, head)
    elif path.suffix == ".npy":
        found = array(path)
    elif path.suffix == ".mat":
        found = matlab(path, "csi")["csi"]
    else:
        raise CommunisError(f"{path}: expected .csv, .npy or .mat")
    if found.ndim not in (2, 3, 4) or found.size == 0 or found.dtype.kind not in "iufc":
        raise CommunisError(
            f"{path}: {found.dtype} of shape {found.shape}; expected numbers (packets, "
            "subcarriers), (packets, antennas, subcarriers) or (packets, tx, rx, subcarriers)"
        )
    found = found.reshape(len(found), -1, found.shape[-1])
    return (np.fft.fftshift(found, 2) if order == "fft" else found), False


def _rows(path: Path, head: list[str]) -> Array:
    """A table of amplitudes or of complex numbers."""
    columns = len(head[0].split(",")) if head else 0
    if not head or not re.search(r"\d[ij]\b", head[0]):
        return numbers(path, columns, ",")
    text = path.read_text("utf-8", errors="replace").replace(" ", "").replace("i", "j")
    rows: list[list[complex]] = []
    for line, row in enumerate(text.splitlines(), start=1):
        cells = row.split(",") if row else []
        try:
            rows += [[complex(cell) for cell in cells]] if cells else []
        except ValueError as error:
            raise CommunisError(f"{path}, line {line}: {error}; expected like 1.5-2j") from None
        if cells and len(cells) != columns:
            raise CommunisError(
                f"{path}, line {line}: {len(cells)} columns, expected {columns} as in line 1"
            )
    return np.array(rows, np.complex64)


def _esp32(path: Path) -> Array:
    """(packets, 64) complex, of lines that name themselves CSI_DATA; others are console output."""
    rows: list[Array] = []
    bad: list[int] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if ESP32 not in line:
                continue
            row = _esp32_packet(line)
            if row is None:
                bad.append(number)
            rows.append(np.full(ESP32_BINS, np.nan, np.complex64) if row is None else row)
    if len(bad) > MOST_BAD * len(rows):
        raise CommunisError(
            f"{path}, line {bad[0]}: not a whole packet, and {len(bad)} of {len(rows)} are not; "
            f"expected {ESP32}, 24 fields and [{2 * ESP32_BINS} numbers or more]. Delete bad lines "
            "or record again at a lower rate"
        )
    return np.stack(rows)


def _esp32_packet(line: str) -> Array | None:
    """(64,) complex, frequencies ascending; None if the line is garbled."""
    fields, bracket, rest = line.partition("[")
    inside, end, _ = rest.partition("]")
    cells = fields.split(",")
    try:
        values = np.array(inside.replace(",", " ").split()[: 2 * ESP32_BINS], np.float32)
        secondary = int(cells[SECONDARY])
    except (ValueError, IndexError):
        return None
    whole = bool(bracket and end) and len(values) == 2 * ESP32_BINS and secondary in (0, 1, 2)
    if not whole or np.abs(values).max() > 128:  # signed bytes
        return None
    csi = values[1::2] + 1j * values[::2]
    # Without a second channel the device lists 0 ... 31, -32 ... -1, with one it lists upwards.
    return np.asarray(np.fft.fftshift(csi) if secondary == 0 else csi, np.complex64)
