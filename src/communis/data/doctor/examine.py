"""Examine: all checks on one dataset, in the order in which a reader would ask."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from communis.core.errors import CommunisError
from communis.core.streams import Streams
from communis.data.doctor import sets
from communis.data.doctor.finding import Finding, Level
from communis.data.doctor.signals import Signal, judged, signals
from communis.data.recordings.source import Recorded
from communis.data.recordings.windows import Windows

SAID = 5  # findings of one sort about single recordings; the rest is counted


def examine(source: Any, streams: Streams | None = None) -> Iterator[Finding]:
    """Findings about a source's files, signals and windows; what cannot be read is an error."""
    try:
        if isinstance(source, Recorded):
            yield from _files(source)
            with _overheard() as said:
                found = list(_recordings(source))
            yield from (Finding("warning", "files", text) for text in said)
            yield from found
        with _overheard():  # the same again
            windows = source.load(streams or Streams())
    except CommunisError as error:
        yield Finding("error", "reading", str(error))
        return
    yield from _windows(windows, getattr(source, "split", "generated"))


def _files(source: Recorded) -> Iterator[Finding]:
    found, complete = len(source.files()), source.about.count
    if complete and found < complete:
        text = f"{found} of {complete} files: a part of the dataset"
        yield Finding("note", "files", text)
    else:
        yield Finding("ok", "files", f"{found} files in {source.place}")
    yield from _strays(source)


def _strays(source: Recorded) -> Iterator[Finding]:
    """What lies among the dataset's files and is not read: closed folders, dead links, files of
    the same sort with another name."""
    sources = source.sources()
    known, endings = set(sources), {path.suffix for path in sources}
    folders = {path.parent for path in sources}
    errors: list[OSError] = []
    found = list(os.walk(source.place, onerror=errors.append))
    closed = [str(error.filename) for error in errors]
    strays: list[Path] = []
    for folder, _, names in found:
        paths = [Path(folder) / name for name in names]
        closed += [str(path) for path in paths if not path.exists()]
        if Path(folder) in folders:
            strays += [p for p in paths if p.suffix in endings and p not in known]
    if closed:
        yield Finding(
            "warning",
            "files",
            f"{len(closed)} cannot be opened, first {closed[0]}",
            "a folder without permission, or a link to nowhere",
        )
    if strays:
        text = f"{len(strays)} of the same sort are not read, first {sorted(strays)[0]}"
        yield Finding("note", "files", text, "their names are not the official ones")


def _recordings(source: Recorded) -> Iterator[Finding]:
    dataset = source.open()
    units = dict(dataset.units)
    found: dict[str, Signal] = {}
    seen: dict[str, list[tuple[str, int]]] = {}
    single: list[Finding] = []
    seconds, subjects = 0.0, set()
    for recording, remarks in signals(iter(dataset.recordings), units, found):
        single += remarks
        seconds += recording.seconds
        subjects.add(recording.subject)
        key = sets.fingerprint(recording)
        seen.setdefault(key, []).append((recording.name, recording.subject))
    count = sum(len(same) for same in seen.values())
    if not count:
        yield Finding("error", "recordings", "none found", "check the folder")
        return
    yield Finding(
        "ok", "recordings", f"{count} of {len(subjects)} subjects, {seconds / 3600:.2f} hours"
    )
    yield from judged(found, units)
    yield from single[:SAID]
    if len(single) > SAID:
        yield Finding("note", "length", f"{len(single) - SAID} more recordings like these")
    doubled = list(sets.copies(seen))
    yield from doubled[:SAID]
    if len(doubled) > SAID:
        yield Finding("note", "copies", f"{len(doubled) - SAID} more like these")
    if not doubled:
        yield Finding("ok", "copies", "no two recordings hold the same values")


def _windows(windows: Windows, kind: str) -> Iterator[Finding]:
    shapes = ", ".join(
        f"{m} {'x'.join(str(n) for n in windows.inputs[m].shape[1:])}" for m in windows.modalities
    )
    yield Finding("ok", "windows", f"{len(windows)} of {windows.seconds:g} s: {shapes}")
    for m, flags in windows.present.items():
        share = 1 - float(np.mean(flags))
        if share > 0:
            level: Level = "warning" if share > 0.5 else "note"
            yield Finding(level, m, f"absent from {100 * share:.2g} % of the windows")
    yield from sets.classes(windows)
    yield from sets.parts(windows, kind)
    yield from sets.leaks(windows)
    yield from sets.near(windows)


@contextmanager
def _overheard() -> Iterator[list[str]]:
    """What a source warns about while it reads, instead of it being printed."""
    log, said = logging.getLogger("communis"), []

    def note(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            said.append(record.getMessage())
        return False

    log.addFilter(note)
    try:
        yield said
    finally:
        log.removeFilter(note)
