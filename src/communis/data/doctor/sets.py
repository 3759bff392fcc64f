"""Checks on a complete dataset: copies, classes, the parts of the split, and leaks between them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from communis.core.arrays import Array
from communis.data.doctor.finding import Finding
from communis.data.recordings.recording import Recording
from communis.data.recordings.splits import CLOSE, distances, separated
from communis.data.recordings.windows import TEST, TRAIN, UNUSED, VAL, Windows

MOST_LISTED = 5  # clients or subjects by name
NEAR = 4  # in window lengths: 2 minutes of sleep, 8 s of movement
MANY = 0.5  # share of test windows near a training window above which a warning is given
DISTINCT = 16  # number of different values from which equal windows count as copies
PARTS = {TRAIN: "training", VAL: "validation", TEST: "test"}


@dataclass(frozen=True)
class Clients:
    """The clients of windows."""

    client_of: Array  # (N,) int64, -1: none
    names: Sequence[str] = ()  # own names of clients; empty: they have none

    def called(self, client: int) -> str:
        own = self.names[client] if client < len(self.names) else ""
        return own or f"client {client}"

    def listed(self, clients: Array) -> str:
        text = ", ".join(self.called(int(i)) for i in clients[:MOST_LISTED])
        more = len(clients) - MOST_LISTED
        return f"{text} and {more} more" if more > 0 else text


def fingerprint(recording: Recording) -> str:
    """Returns a hash of the values, which is equal for copies of a recording with other names."""
    digest = hashlib.blake2b(digest_size=16)
    for m in sorted(recording.streams):
        digest.update(m.encode())
        digest.update(np.ascontiguousarray(recording.streams[m].values).tobytes())
    return digest.hexdigest()


def copies(by_fingerprint: dict[str, list[tuple[str, int]]]) -> Iterator[Finding]:
    """Yields findings about equal recordings; the lists hold their names and subjects."""
    for same in by_fingerprint.values():
        if len(same) < 2:
            continue
        text = f"{', '.join(name for name, _ in same)} hold the same values"
        fix = "remove all but one: copies in training and test make scores too high"
        if len({subject for _, subject in same}) > 1:
            yield Finding("error", "copies", f"{text} although their subjects differ", fix)
        else:
            yield Finding("warning", "copies", text, fix)


def classes(windows: Windows) -> Iterator[Finding]:
    """Yields findings about the number of windows per class, or the range of the target."""
    if windows.target.ndim != 1:
        columns = windows.target.shape[1]
        low = windows.target.min()
        high = windows.target.max()
        yield Finding("ok", "target", f"{columns} columns from {low:.3g} to {high:.3g}")
        return
    counts = np.bincount(windows.target, minlength=windows.task.classes)
    names = windows.labels or tuple(str(c) for c in range(len(counts)))
    empty = [name for name, n in zip(names, counts, strict=True) if not n]
    if empty:
        yield Finding(
            "warning",
            "classes",
            f"no window of {', '.join(empty)}",
            "choose fewer classes or shorter windows, or complete the files",
        )
    present = np.flatnonzero(counts)
    smallest = present[counts[present].argmin()]
    largest = counts.argmax()
    text = (
        f"{len(present)} classes, from {counts[smallest]} windows ({names[smallest]}) to "
        f"{counts[largest]} ({names[largest]})"
    )
    if counts[largest] > 20 * counts[smallest]:
        yield Finding("warning", "classes", text, "judge by macro-F1, not by accuracy")
    else:
        yield Finding("ok", "classes", text)


def parts(windows: Windows, kind: str) -> Iterator[Finding]:
    """Yields findings about the sizes of the parts, and about subjects in several of them."""
    sizes = {name: int((windows.split == part).sum()) for part, name in PARTS.items()}
    text = f"{kind}: " + ", ".join(f"{n} {name}" for name, n in sizes.items())
    unused = int((windows.split == UNUSED).sum())
    if unused:
        text += f", {unused} left out in gaps"
    empty = [name for name, n in sizes.items() if not n]
    if empty:
        text += f"; none for {', '.join(empty)}"
        yield Finding("warning", "split", text, "choose another data.split or data.shares")
    else:
        yield Finding("ok", "split", text)
    trained = np.unique(windows.owner[windows.split == TRAIN])
    tested = np.unique(windows.owner[windows.split == TEST])
    both = np.intersect1d(trained, tested)
    if kind == "subject" and len(both):
        yield Finding("error", "subjects", f"{_listed(both)} are in training and in test")
    elif len(both):
        subjects = len(np.unique(windows.owner))
        fix = "right for models that know their user"
        if kind != "generated" and subjects > 1:
            fix += "; to test on new people set data.split to 'subject'"
        text = f"{len(both)} of {subjects} are in training and in test"
        yield Finding("note", "subjects", text, fix)
    else:
        yield Finding("ok", "subjects", "nobody is in training and in test")


def clients(windows: Windows, clients: Clients) -> Iterator[Finding]:
    """Yields findings about the windows of every client in every part of the split."""
    count = int(clients.client_of.max(initial=-1)) + 1
    used = clients.client_of >= 0
    sizes = {}
    for part in PARTS:
        chosen = used & (windows.split == part)
        sizes[part] = np.bincount(clients.client_of[chosen], minlength=count)
    trained = sizes[TRAIN]
    fewest = int(trained.argmin())
    most = int(trained.argmax())
    yield Finding(
        "ok",
        "clients",
        f"{count}, from {trained[fewest]} training windows ({clients.called(fewest)}) to "
        f"{trained[most]} ({clients.called(most)})",
    )
    untrained = np.flatnonzero((trained == 0) & (sizes[TEST] > 0))
    untested = np.flatnonzero((trained > 0) & (sizes[TEST] == 0))
    if len(untrained):
        text = f"{clients.listed(untrained)}: only tested, no training windows"
        yield Finding("note", "clients", text, "right for new people; methods like local skip them")
    if len(untested):
        text = f"{clients.listed(untested)}: no test windows, so they have no score"
        yield Finding("warning", "clients", text, "choose another data.split or data.shares")
    if windows.task.classes:
        yield from _strange_classes(windows, clients, count)


def _strange_classes(windows: Windows, clients: Clients, count: int) -> Iterator[Finding]:
    """Yields a finding about clients that are tested on classes that they never train on."""
    cells = clients.client_of * windows.task.classes + windows.classes
    there = {}
    for part in (TRAIN, TEST):
        chosen = (clients.client_of >= 0) & (windows.split == part)
        flags = np.bincount(cells[chosen], minlength=count * windows.task.classes) > 0
        there[part] = flags.reshape(count, -1)
    strange = (there[TEST] & ~there[TRAIN]).any(1) & there[TRAIN].any(1)
    if strange.any():
        text = (
            f"{clients.listed(np.flatnonzero(strange))}: tested on classes that they have no "
            "training windows of"
        )
        yield Finding("note", "clients", text, "personal models cannot know these classes")


def leaks(windows: Windows) -> Iterator[Finding]:
    """Yields findings about windows of different parts that share samples or are copies."""
    without_shared = separated(
        windows.split, windows.recording, windows.start, windows.seconds, 0.0
    )
    shared = int((without_shared != windows.split).sum())
    doubles = _doubles(windows)
    if shared:
        text = f"{shared} windows share samples with windows of another part"
        yield Finding("error", "leakage", text, "choose another data.split")
    elif windows.notes:
        yield Finding("error", "leakage", "; ".join(windows.notes), "choose another data.split")
    if doubles:
        text = f"{doubles} windows of validation or test are copies of training windows"
        yield Finding("error", "leakage", text, "remove copied recordings")
    if not shared and not windows.notes and not doubles:
        yield Finding("ok", "leakage", "no window shares samples with one of another part")


def near(windows: Windows) -> Iterator[Finding]:
    """Yields a finding about test windows near a training window of the same recording, of any
    class. The gap of a split by time is within a stretch of one class, so it does not separate
    them."""
    length = windows.seconds
    distance = distances(windows.recording, windows.start, windows.split == TRAIN)
    distance = distance[windows.split == TEST] - length
    if not len(distance):
        return
    limit = NEAR * length
    share = float((distance < limit * (1 - CLOSE)).mean())
    text = f"{100 * share:.0f} % of the test windows are within {limit:g} s of a training window"
    if share > MANY:
        fix = (
            "neighbours are similar, so scores are too high for a new day: set data.split to "
            f"'session' or 'subject', or data.apart to {limit:g} seconds"
        )
        yield Finding("warning", "nearness", text, fix)
    else:
        yield Finding("note" if share else "ok", "nearness", text)


def _doubles(windows: Windows) -> int:
    """Returns the number of windows of validation and test that are copies of training windows."""
    keys, varied = _hashes(windows)
    trained = keys[(windows.split == TRAIN) & varied]
    others = keys[((windows.split == VAL) | (windows.split == TEST)) & varied]
    return int(np.isin(others, trained).sum())


def _hashes(windows: Windows, rows: int = 4096) -> tuple[Array, Array]:
    """Returns for every window (N,) a hash of its values, and whether it has so many different
    values that it is not equal to another by chance, as windows of an empty room or of a slow heart
    rate can be."""
    digests = [hashlib.blake2b(digest_size=8) for _ in range(len(windows))]
    varied = np.zeros(len(windows), bool)
    for m in windows.modalities:
        for begin in range(0, len(windows), rows):
            block = slice(begin, begin + rows)
            values = np.ascontiguousarray(windows.inputs[m][block])
            flat = np.where(np.isfinite(values), values, 0).reshape(len(values), -1)
            different = 1 + (np.diff(np.sort(flat, 1), axis=1) != 0).sum(1)
            varied[block] |= different >= DISTINCT
            for digest, row in zip(digests[block], flat, strict=True):
                digest.update(row.data)
        windows.release()
    keys = np.frombuffer(b"".join(d.digest() for d in digests), np.int64)
    return keys, varied


def _listed(ids: Array) -> str:
    text = ", ".join(str(i) for i in ids[:MOST_LISTED])
    more = len(ids) - MOST_LISTED
    return text + (f" and {more} more" if more > 0 else "")
