"""Examine: runs all checks on one dataset: files, then signals, then windows."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
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

MOST_SHOWN = 5  # findings of one kind about single recordings; the others are only counted


def examine(
    source: Any,
    streams: Streams | None = None,
    clients_of: Callable[[Windows], sets.Clients] | None = None,
) -> Iterator[Finding]:
    """Yields findings about a source's files, signals and windows. A dataset that cannot be read is
    a finding, too. clients_of: assigns the windows to clients, which are then checked as well."""
    try:
        if isinstance(source, Recorded):
            yield from _files(source)
            with _captured_warnings() as warnings:
                findings = list(_recordings(source))
            for text in warnings:
                yield Finding("warning", "files", text)
            yield from findings
        with _captured_warnings():  # they are the same as above
            windows = source.load(streams or Streams())
    except CommunisError as error:
        yield Finding("error", "reading", str(error))
        return
    yield from _windows(windows, getattr(source, "split", "generated"))
    if clients_of is None:
        return
    try:
        clients = clients_of(windows)
    except CommunisError as error:
        yield Finding("error", "clients", str(error), "choose another [partition]")
        return
    yield from sets.clients(windows, clients)


def _files(source: Recorded) -> Iterator[Finding]:
    """Yields findings about the number of files, and about files that are not read."""
    count = len(source.files())
    complete = source.about.count
    if complete and count < complete:
        yield Finding("note", "files", f"{count} of {complete} files: a part of the dataset")
    else:
        yield Finding("ok", "files", f"{count} files in {source.place}")
    yield from _unread(source)


def _unread(source: Recorded) -> Iterator[Finding]:
    """Yields findings about paths among the dataset's files that are not read: folders without
    permission, broken links, files with the same suffix but another name."""
    sources = source.sources()
    known = set(sources)
    suffixes = {path.suffix for path in sources}
    folders = {path.parent for path in sources}
    errors: list[OSError] = []
    tree = list(os.walk(source.place, onerror=errors.append))
    closed = [str(error.filename) for error in errors]
    ignored: list[Path] = []
    for folder, _, names in tree:
        paths = [Path(folder) / name for name in names]
        closed += [str(path) for path in paths if not path.exists()]
        if Path(folder) in folders:
            ignored += [p for p in paths if p.suffix in suffixes and p not in known]
    if closed:
        yield Finding(
            "warning",
            "files",
            f"{len(closed)} cannot be opened, first {closed[0]}",
            "a folder without permission, or a broken link",
        )
    if ignored:
        text = f"{len(ignored)} of the same kind are not read, first {sorted(ignored)[0]}"
        yield Finding("note", "files", text, source.why_unread)


def _recordings(source: Recorded) -> Iterator[Finding]:
    """Yields findings about signals and copies; reads every recording once."""
    dataset = source.open()
    units = dict(dataset.units)
    by_modality: dict[str, Signal] = {}
    by_fingerprint: dict[str, list[tuple[str, int]]] = {}  # names and subjects
    lengths: list[Finding] = []
    seconds = 0.0
    subjects = set()
    for recording, findings in signals(iter(dataset.recordings), units, by_modality):
        lengths += findings
        seconds += recording.seconds
        subjects.add(recording.subject)
        fingerprint = sets.fingerprint(recording)
        same = by_fingerprint.setdefault(fingerprint, [])
        same.append((recording.name, recording.subject))
    count = sum(len(same) for same in by_fingerprint.values())
    if not count:
        yield Finding("error", "recordings", "none found", "check the folder")
        return
    yield Finding(
        "ok", "recordings", f"{count} of {len(subjects)} subjects, {seconds / 3600:.2f} hours"
    )
    yield from judged(by_modality, units)
    yield from lengths[:MOST_SHOWN]
    if len(lengths) > MOST_SHOWN:
        yield Finding("note", "length", f"{len(lengths) - MOST_SHOWN} more recordings like these")
    copies = list(sets.copies(by_fingerprint))
    yield from copies[:MOST_SHOWN]
    if len(copies) > MOST_SHOWN:
        yield Finding("note", "copies", f"{len(copies) - MOST_SHOWN} more like these")
    if not copies:
        yield Finding("ok", "copies", "no two recordings hold the same values")


def _windows(windows: Windows, kind: str) -> Iterator[Finding]:
    """Yields findings about the windows and their split."""
    shapes = []
    for m in windows.modalities:
        shape = "x".join(str(n) for n in windows.inputs[m].shape[1:])
        shapes.append(f"{m} {shape}")
    text = f"{len(windows)} of {windows.seconds:g} s: {', '.join(shapes)}"
    yield Finding("ok", "windows", text)
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
def _captured_warnings() -> Iterator[list[str]]:
    """Collects the warnings of a source that reads, and suppresses all its log messages."""
    log = logging.getLogger("communis")
    warnings: list[str] = []

    def capture(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.WARNING:
            warnings.append(record.getMessage())
        return False

    log.addFilter(capture)
    try:
        yield warnings
    finally:
        log.removeFilter(capture)
