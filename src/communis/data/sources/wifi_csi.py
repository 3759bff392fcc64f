"""Wi-Fi CSI: counting of people by your own Wi-Fi CSI, recorded with Nexmon, ESP32 or Intel 5300.

There is one folder per environment (room), and one file per recording, whose name starts with the
number of people: room1/3_a.csv, room1/0.npy, bus/12-monday.mat. Files hold packets in the order of
time:

    .npy    complex or amplitude; (packets, subcarriers), (packets, antennas, subcarriers) or
            (packets, tx, rx, subcarriers)
    .mat    the same in a variable `csi`, as from the Intel 5300 tool: (packets, tx, rx, 30)
    .csv    a row per packet, a column per subcarrier: amplitudes, or complex as 1.5-2j or 1.5-2i
    .csv    lines CSI_DATA,...,[imaginary real imaginary real ...] of an ESP32 (ESP32-CSI-Tool,
            esp-csi). The legacy training field is used: the first 64 subcarriers

Packets have a constant rate, which the files do not state. A corrupt line of an ESP32 is a lost
packet (NaN); a file with more than one in twenty is refused. Subcarriers without signal (guard band
and the middle) are removed; pilots stay. Of 256 subcarriers 242 remain, as in FedAPA.
"""

from __future__ import annotations

import re
from collections import Counter
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
WITHOUT_NULLS = (30, 52, 56, 114, 242)  # numbers of bins without nulls: Intel 5300, and the above
ESP32 = "CSI_DATA"
ESP32_BINS = 64
SECONDARY = 17  # field of an ESP32 line: second channel (40 MHz): 0: none, 1 or 2: above or below
MOST_BAD = 0.05  # share of corrupt lines


@dataclass(frozen=True)
class WifiCsi(Recorded):
    """Settings of `[data] name = "wifi_csi"`. The subjects and scenes are the environments,
    numbered from 1 in the order of their names."""

    window: float = 10.0  # length of a window in seconds
    packets: float = 100.0  # packets per second, above 0
    most: int = 20  # largest number of people, at least 1; there are most + 1 classes
    # subcarriers without signal: table: removed by number; zeros: removed if always 0; keep: kept
    nulls: Literal["table", "zeros", "keep"] = "table"
    # order of subcarriers in files: centred: by frequency; fft: the middle first
    order: Literal["centred", "fft"] = "centred"
    phase: bool = False  # whether to add the phase, without offset and slope, as csi_phase

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.packets <= 0 or self.most < 1:
            raise CommunisError(
                "wifi_csi: packets must be positive and most at least 1, got "
                f"{self.packets:g} and {self.most}"
            )

    def read(self, folder: Path) -> Dataset:
        labels = tuple(str(people) for people in range(self.most + 1))
        units = {"csi": "a.u.", "csi_phase": "rad"} if self.phase else {"csi": "a.u."}
        return Dataset(self._recordings(folder), Counting(len(labels)), labels, units)

    def _recordings(self, folder: Path) -> Iterator[Recording]:
        paths = matching(folder, ABOUT.files)
        environments = sorted({path.parent for path in paths})
        trials: Counter[tuple[Path, int]] = Counter()
        form: tuple[tuple[int, ...], bool] | None = None  # of the first file
        kept: Array = np.zeros(0, np.int64)
        for path in paths:
            people = self._people(path)
            csi, legacy = packets(path, self.order)
            if form is None:
                form = (csi.shape[1:], legacy)
                kept = self._kept(path, csi, legacy)
            if (csi.shape[1:], legacy) != form:
                raise CommunisError(
                    f"{path}: (antennas, subcarriers) = {csi.shape[1:]}, but {form[0]} in "
                    f"{paths[0]}, or another device; use one data folder per device"
                )
            trials[path.parent, people] += 1
            environment = environments.index(path.parent) + 1
            yield Recording(
                self._streams(path, csi, kept),
                people,
                subject=environment,
                scene=environment,
                trial=trials[path.parent, people],
                name=path.relative_to(folder).as_posix(),
            )

    def _people(self, path: Path) -> int:
        people = int(re.sub(r"\D.*", "", path.name))
        if people > self.most:
            raise CommunisError(
                f"{path}: its name states {people} people, at most {self.most} are expected; set "
                f"data.most to {people} or more"
            )
        return people

    def _kept(self, path: Path, csi: Array, legacy: bool) -> Array:
        """Returns the positions of the subcarriers to keep; the first file decides them."""
        bins = csi.shape[2]
        if self.nulls == "zeros":
            return np.flatnonzero((np.nan_to_num(csi) != 0).any((0, 1)))
        if self.nulls == "keep" or bins in WITHOUT_NULLS:
            return np.arange(bins)
        if bins not in USED:
            raise CommunisError(
                f"{path}: no table of null subcarriers for {bins} subcarriers; set data.nulls to "
                "'zeros' (remove those that are always 0) or 'keep'"
            )
        low, high = LEGACY if legacy else USED[bins]
        distance = np.abs(np.arange(bins) - bins // 2)
        return np.flatnonzero((distance >= low) & (distance <= high))

    def _streams(self, path: Path, csi: Array, kept: Array) -> dict[str, Stream]:
        if self.nulls == "zeros" and np.nan_to_num(np.delete(csi, kept, 2)).any():
            raise CommunisError(
                f"{path}: some subcarriers that are 0 in all of the first file have a signal here; "
                "set data.nulls to 'table' or 'keep'"
            )
        csi = csi[:, :, kept]
        if not np.iscomplexobj(csi) and (self.phase or (csi < 0).any()):
            problem = "which have no phase" if self.phase else "some negative"
            raise CommunisError(
                f"{path}: real numbers, {problem}; expected complex values, or amplitudes and "
                "data.phase = false"
            )
        streams = {"csi": Stream(np.abs(csi).astype(np.float32), self.packets, kind="csi")}
        if self.phase:
            angle = sanitised(np.angle(csi), kept)
            streams["csi_phase"] = Stream(angle.astype(np.float32), self.packets, kind="csi")
        return streams


def sanitised(phase: Array, subcarriers: Array) -> Array:
    """Returns the phase (..., subcarriers) without the errors of clocks: an offset per packet, and
    a slope over subcarriers from the time of sampling."""
    unwrapped = np.unwrap(phase, axis=-1)
    centred = unwrapped - unwrapped.mean(-1, keepdims=True)
    x = subcarriers - subcarriers.mean()
    slope = (centred * x).sum(-1, keepdims=True) / (x**2).sum()
    return np.asarray(centred - slope * x)


def packets(path: Path, order: Literal["centred", "fft"]) -> tuple[Array, bool]:
    """Returns (packets, antennas, subcarriers) with ascending frequencies, and whether they are
    those of a legacy training field."""
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", errors="replace") as lines:
            head = [line for _, line in zip(range(100), lines, strict=False)]
        if any(ESP32 in line for line in head):
            return _esp32(path)[:, None], True
        csi = _rows(path, head)
    elif path.suffix == ".npy":
        csi = array(path)
    elif path.suffix == ".mat":
        csi = matlab(path, "csi")["csi"]
    else:
        raise CommunisError(f"{path}: expected .csv, .npy or .mat")
    if csi.ndim not in (2, 3, 4) or csi.size == 0 or csi.dtype.kind not in "iufc":
        raise CommunisError(
            f"{path}: {csi.dtype} of shape {csi.shape}; expected numbers (packets, "
            "subcarriers), (packets, antennas, subcarriers) or (packets, tx, rx, subcarriers)"
        )
    csi = csi.reshape(len(csi), -1, csi.shape[-1])
    if order == "fft":
        csi = np.fft.fftshift(csi, 2)
    return csi, False


def _rows(path: Path, head: list[str]) -> Array:
    """Returns a table of amplitudes or of complex numbers."""
    columns = len(head[0].split(",")) if head else 0
    if not head or not re.search(r"\d[ij]\b", head[0]):
        return numbers(path, columns, ",")
    text = path.read_text("utf-8", errors="replace").replace(" ", "").replace("i", "j")
    rows: list[list[complex]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line:
            continue
        cells = line.split(",")
        try:
            rows.append([complex(cell) for cell in cells])
        except ValueError as error:
            raise CommunisError(
                f"{path}, line {number}: {error}; expected numbers such as 1.5-2j"
            ) from None
        if len(cells) != columns:
            raise CommunisError(
                f"{path}, line {number}: {len(cells)} columns, expected {columns} as in line 1"
            )
    return np.array(rows, np.complex64)


def _esp32(path: Path) -> Array:
    """Returns (packets, 64) complex from the lines with CSI_DATA; other lines are console
    output."""
    rows: list[Array] = []
    corrupt: list[int] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if ESP32 not in line:
                continue
            row = _esp32_packet(line)
            if row is None:
                corrupt.append(number)
                row = np.full(ESP32_BINS, np.nan, np.complex64)
            rows.append(row)
    if len(corrupt) > MOST_BAD * len(rows):
        raise CommunisError(
            f"{path}, line {corrupt[0]}: not a complete packet, like {len(corrupt)} of {len(rows)} "
            f"lines; expected {ESP32}, 24 fields and [{2 * ESP32_BINS} numbers or more]. Delete "
            "these lines, or record again at a lower rate"
        )
    return np.stack(rows)


def _esp32_packet(line: str) -> Array | None:
    """Returns (64,) complex with ascending frequencies; None if the line is corrupt."""
    fields, bracket, rest = line.partition("[")
    inside, end, _ = rest.partition("]")
    cells = fields.split(",")
    try:
        values = np.array(inside.replace(",", " ").split()[: 2 * ESP32_BINS], np.float32)
        secondary = int(cells[SECONDARY])
    except (ValueError, IndexError):
        return None
    complete = bool(bracket and end) and len(values) == 2 * ESP32_BINS
    if not complete or secondary not in (0, 1, 2) or np.abs(values).max() > 128:  # signed bytes
        return None
    csi = values[1::2] + 1j * values[::2]
    # Without a second channel the order is 0 ... 31, -32 ... -1, with one it is ascending.
    return np.asarray(np.fft.fftshift(csi) if secondary == 0 else csi, np.complex64)
