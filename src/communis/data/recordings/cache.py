"""The window cache: windows are cut once, kept on disk, and mapped into memory afterwards.

The name of a folder is a hash of everything that decides its content: the bytes of the dataset's
files, the settings, and the code that reads and cuts. A folder is written under another name and
renamed when it is complete. A folder that a crash or a full disk left incomplete is recognised and
written again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from communis.core.arrays import Array
from communis.core.contract import Modality
from communis.core.errors import CommunisError
from communis.core.scratch import Scratch
from communis.data.recordings.cut import Cut, Piece, pieces
from communis.data.recordings.files import home
from communis.data.recordings.recording import Dataset, Kind, Recording
from communis.data.recordings.windows import ORIGIN, TRAIN, Windows

log = logging.getLogger("communis")
DIGEST = 12  # bytes of a hash
SETTLED = 2_000_000_000  # nanoseconds after which a change of a file shows in its time stamp
REPORT = 5  # seconds between two log messages about progress


def kept(dataset: Dataset, how: Cut, place: Path) -> Windows:
    """Returns the windows of a dataset from the folder `place`. If it does not hold them, they are
    cut and written there first. All windows are in training: the split is applied afterwards."""
    windows = _opened(dataset, how, place)
    if windows is None:
        if place.exists():
            log.warning("%s is incomplete and is written again", place.name)
        _write(dataset, how, place)
        windows = _opened(dataset, how, place)
        if windows is None:
            raise CommunisError(
                f"{place}: the windows just written cannot be read back; check the disk, or set "
                "the environment variable COMMUNIS_DATA to another folder"
            )
    return windows


def key(
    paths: Sequence[Path], root: Path, settings: Mapping[str, Any], code: Sequence[Path]
) -> str:
    """Returns the hash that names the windows of these files, settings and code."""
    digest = hashlib.blake2b(digest_size=DIGEST)
    digest.update(_contents(paths, root).encode())
    digest.update(repr(sorted(settings.items())).encode())
    for path in (*sorted(Path(__file__).parent.glob("*.py")), *code):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _contents(paths: Sequence[Path], root: Path) -> str:
    """Returns a hash of all files. They are not read again as long as names, sizes and times are
    unchanged."""
    stats = [path.stat() for path in paths]
    listing = hashlib.blake2b(digest_size=DIGEST)
    listing.update(str(root.resolve()).encode())
    for path, stat in zip(paths, stats, strict=True):
        times = f"{stat.st_mtime_ns}|{stat.st_ctime_ns}"
        listing.update(f"{path.relative_to(root)}|{stat.st_size}|{times}\n".encode())
    note = home() / "windows" / "contents" / listing.hexdigest()
    with suppress(OSError):
        noted = note.read_text("utf-8")
        if len(noted) == 2 * DIGEST:  # otherwise a crash truncated the note
            return noted
    digest = hashlib.blake2b(digest_size=DIGEST)
    for path in paths:
        digest.update(str(path.relative_to(root)).encode())
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "blake2b").digest())
    newest = max(max(stat.st_mtime_ns, stat.st_ctime_ns) for stat in stats)
    if time.time_ns() - newest > SETTLED:
        with suppress(OSError):  # the note only saves time
            note.parent.mkdir(parents=True, exist_ok=True)
            _replace(note, digest.hexdigest().encode())
    return digest.hexdigest()


@dataclass
class _Writer:
    """Appends pieces to one file per modality. A modality is NaN in recordings that lack it."""

    folder: Path
    count: int = 0
    files: dict[Modality, BinaryIO] = field(default_factory=dict)
    shapes: dict[Modality, tuple[int, ...]] = field(default_factory=dict)
    kinds: dict[Modality, Kind] = field(default_factory=dict)
    rates: dict[Modality, float] = field(default_factory=dict)  # of the first recording
    present: dict[Modality, list[Array]] = field(default_factory=dict)

    def add(self, piece: Piece) -> None:
        for m, windows in piece.inputs.items():
            if m not in self.files:
                self.files[m] = (self.folder / f"{m}.bin").open("wb")
                self.shapes[m] = windows.shape[1:]
                self.kinds[m] = piece.kinds[m]
                self.rates[m] = piece.rates[m]
                self.present[m] = []
                self._absent(m, self.count)
            if windows.shape[1:] != self.shapes[m]:
                advice = ": set data.rate, so that all have the same rate"
                raise CommunisError(
                    f"windows of {m} have shape {windows.shape[1:]}, in other recordings "
                    f"{self.shapes[m]}" + (advice if windows.ndim == 3 else "")
                )
            self.files[m].write(np.ascontiguousarray(windows, np.float32).data)
            self.present[m].append(piece.present[m])
        for m in self.files:
            if m not in piece.inputs:
                self._absent(m, len(piece))
        self.count += len(piece)

    def _absent(self, m: Modality, count: int) -> None:
        """Appends `count` windows without the modality."""
        row = np.full(self.shapes[m], np.nan, np.float32).tobytes()
        for _ in range(count):
            self.files[m].write(row)
        self.present[m].append(np.zeros(count, bool))

    def finish(self) -> None:
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())

    def close(self) -> None:
        for file in self.files.values():
            file.close()


def _write(dataset: Dataset, how: Cut, place: Path) -> None:
    """Writes the windows into a folder next to `place` and renames it to `place`."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with Scratch(place.parent, variable="COMMUNIS_DATA") as scratch:
            part = scratch / "windows"
            _fill(dataset, how, part)
            if _opened(dataset, how, place) is None:  # otherwise another process was faster
                shutil.rmtree(place, ignore_errors=True)
                try:
                    part.rename(place)
                except OSError:
                    if _opened(dataset, how, place) is None:
                        raise
    except OSError as error:
        raise CommunisError(
            f"{place.parent}: windows cannot be written there: {error.strerror or error}; "
            "set the environment variable COMMUNIS_DATA to a folder with free space"
        ) from None


def _fill(dataset: Dataset, how: Cut, part: Path) -> None:
    """Writes windows, origins, targets and the description `meta.json` into the folder `part`."""
    part.mkdir()
    writer = _Writer(part)
    try:
        origin, target, names = _collect(dataset, how, writer)
    finally:
        writer.close()
    for m, flags in writer.present.items():
        _save(part / f"{m}.present.npy", np.concatenate(flags))
    for name, values in (*origin.items(), ("target", target)):
        _save(part / f"{name}.npy", values)
    sizes = {path.name: path.stat().st_size for path in sorted(part.iterdir())}
    meta = {
        "count": writer.count,
        "shapes": writer.shapes,
        "kinds": writer.kinds,
        "rates": writer.rates,
        "names": names,
        "sizes": sizes,
    }
    _replace(part / "meta.json", json.dumps(meta, indent=1).encode())


def _collect(
    dataset: Dataset, how: Cut, writer: _Writer
) -> tuple[dict[str, Array], Array, dict[str, dict[int, str]]]:
    """Writes all windows; returns the arrays of their origin, the targets, and the own names of
    subjects and scenes by number."""
    names: dict[str, dict[int, str]] = {}
    elapsed: dict[int, float] = {}  # recordings of a subject follow each other without a gap
    longest = 0.0
    columns: dict[str, list[Array]] = {name: [] for name in ("owner", *ORIGIN)}
    targets: list[Array] = []
    for number, (recording, piece) in enumerate(_announced(pieces(dataset, how))):
        longest = max(longest, recording.seconds)
        begin = elapsed.get(recording.subject, 0.0)
        elapsed[recording.subject] = begin + recording.seconds
        if not len(piece):
            continue
        try:
            writer.add(piece)
        except CommunisError as error:
            raise CommunisError(f"{recording.name}: {error}") from None
        origin = {
            "owner": recording.subject,
            "scene": recording.scene,
            "session": recording.session,
            "trial": recording.trial,
            "recording": number,
        }
        for key, name in recording.names.items():
            names.setdefault(key, {})[getattr(recording, key)] = name
        for name, value in origin.items():
            columns[name].append(np.full(len(piece), value, np.int64))
        columns["start"].append(begin + piece.start)
        targets.append(piece.target)
    writer.finish()
    if not targets:
        raise CommunisError(
            f"no recording holds a labelled window of {how.seconds} s; "
            f"the longest lasts {longest:.1f} s"
        )
    origins = {name: np.concatenate(parts) for name, parts in columns.items()}
    return origins, np.concatenate(targets), names


def _announced(pairs: Iterator[tuple[Recording, Piece]]) -> Iterator[tuple[Recording, Piece]]:
    """Yields the pairs and logs the progress from time to time; names a file that cannot be
    read."""
    reported = time.monotonic()
    number = 0
    while True:
        try:
            pair = next(pairs, None)
        except OSError as error:
            raise CommunisError(f"{error.filename}: cannot be read: {error.strerror}") from None
        if pair is None:
            return
        number += 1
        if time.monotonic() - reported > REPORT:
            log.info("%d recordings read, now %s", number, pair[0].name)
            reported = time.monotonic()
        yield pair


def _opened(dataset: Dataset, how: Cut, place: Path) -> Windows | None:
    """Returns the windows in a folder; None if the folder is incomplete."""
    try:
        meta = json.loads((place / "meta.json").read_text("utf-8"))
        for name, size in meta["sizes"].items():
            if (place / name).stat().st_size != size:
                return None
        shapes = meta["shapes"]
        count = meta["count"]
        kinds = meta["kinds"]
        rates = meta["rates"]
        if not shapes or not count:
            return None
        inputs = {
            m: np.memmap(place / f"{m}.bin", np.float32, "r", shape=(count, *shape))
            for m, shape in shapes.items()
        }
        present = {m: np.load(place / f"{m}.present.npy") for m in shapes}
        columns = {name: np.load(place / f"{name}.npy") for name in ("target", "owner", *ORIGIN)}
        names = {
            key: {int(number): str(name) for number, name in of_key.items()}
            for key, of_key in meta["names"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError):
        return None
    return Windows(
        inputs=inputs,
        split=np.full(count, TRAIN, np.int8),
        task=dataset.task,
        present=present,
        labels=dataset.labels,
        seconds=how.seconds,
        kinds=kinds,
        rates=rates,
        units={m: unit for m, unit in dataset.units.items() if m in shapes},
        names=names,
        **columns,
    )


def _save(path: Path, values: Array) -> None:
    with path.open("wb") as file:
        np.save(file, values)
        file.flush()
        os.fsync(file.fileno())


def _replace(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.part{os.getpid()}")
    part.write_bytes(content)
    part.replace(path)
