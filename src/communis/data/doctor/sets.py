"""What a dataset holds as a whole: copies, classes, who is in which part, and what leaks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from communis.core.arrays import Array
from communis.data.doctor.finding import Finding
from communis.data.recordings.recording import Recording
from communis.data.recordings.splits import CLOSE, distances, separated
from communis.data.recordings.windows import TEST, TRAIN, UNUSED, VAL, Windows

NEAR = 4  # window lengths: 2 minutes of sleep, 8 s of movement
MANY = 0.5  # the share of test windows near a training window that is warned of
DISTINCT = 16  # values that a window must hold to be taken for a copy
PARTS = {TRAIN: "training", VAL: "validation", TEST: "test"}


def fingerprint(recording: Recording) -> str:
    """Equal for recordings with the same values, whatever they are called."""
    digest = hashlib.blake2b(digest_size=16)
    for m in sorted(recording.streams):
        digest.update(m.encode())
        digest.update(np.ascontiguousarray(recording.streams[m].values).tobytes())
    return digest.hexdigest()


def copies(seen: dict[str, list[tuple[str, int]]]) -> Iterator[Finding]:
    """`seen`: name and subject of the recordings with a fingerprint."""
    for same in seen.values():
        if len(same) > 1:
            people = len({subject for _, subject in same}) > 1
            yield Finding(
                "error" if people else "warning",
                "copies",
                f"{', '.join(name for name, _ in same)} hold the same values"
                + (" although their subjects differ" if people else ""),
                "remove all but one: copies on both sides of a split make scores too good",
            )


def classes(windows: Windows) -> Iterator[Finding]:
    if windows.target.ndim != 1:
        low, high = windows.target.min(0), windows.target.max(0)
        yield Finding(
            "ok", "target", f"{len(low)} columns from {low.min():.3g} to {high.max():.3g}"
        )
        return
    counts = np.bincount(windows.target, minlength=windows.task.classes)
    names = windows.labels or tuple(str(c) for c in range(len(counts)))
    none = [name for name, n in zip(names, counts, strict=True) if not n]
    if none:
        yield Finding(
            "warning",
            "classes",
            f"no window of {', '.join(none)}",
            "choose fewer classes or shorter windows, or complete the files",
        )
    some = counts[counts > 0]
    least, most = names[int(np.argmin(np.where(counts, counts, counts.max())))], counts.argmax()
    text = (
        f"{len(some)} classes, from {some.min()} windows ({least}) to {some.max()} ({names[most]})"
    )
    if some.max() > 20 * some.min():
        yield Finding("warning", "classes", text, "judge by macro-F1, not by accuracy")
    else:
        yield Finding("ok", "classes", text)


def parts(windows: Windows, kind: str) -> Iterator[Finding]:
    """Sizes of the parts, and who is in several of them."""
    sizes = {name: int((windows.split == s).sum()) for s, name in PARTS.items()}
    text = ", ".join(f"{n} {name}" for name, n in sizes.items())
    unused = int((windows.split == UNUSED).sum())
    text += f", {unused} left out in gaps" if unused else ""
    empty = [name for name, n in sizes.items() if not n]
    yield Finding(
        "warning" if empty else "ok",
        "split",
        f"{kind}: {text}" + (f"; none for {', '.join(empty)}" if empty else ""),
        "choose another data.split or data.shares" if empty else "",
    )
    trained, tested = (np.unique(windows.owner[windows.split == s]) for s in (TRAIN, TEST))
    both = np.intersect1d(trained, tested)
    if kind == "subject" and len(both):
        yield Finding("error", "subjects", f"{_some(both)} are in training and in test")
    elif len(both):
        text = f"{len(both)} of {len(np.unique(windows.owner))} are in training and in test"
        fix = "right for models that know their user"
        if kind != "generated" and len(np.unique(windows.owner)) > 1:
            fix += "; to judge on new people set data.split to 'subject'"
        yield Finding("note", "subjects", text, fix)
    else:
        yield Finding("ok", "subjects", "nobody is in training and in test")


def leaks(windows: Windows) -> Iterator[Finding]:
    """Windows of different parts that share samples, or that are copies of each other."""
    apart = separated(windows.split, windows.recording, windows.start, windows.seconds, 0.0)
    shared = int((apart != windows.split).sum())
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
    """Test windows with a training window of the same recording close by, of whatever class. The
    gap of a split by time lies within a stretch of one class, so it does not keep them away."""
    tested = windows.split == TEST
    start, length = windows.start, windows.seconds
    distance = distances(windows.recording, start, windows.split == TRAIN)[tested] - length
    if not len(distance):
        return
    share = float((distance < NEAR * length * (1 - CLOSE)).mean())
    text = (
        f"{100 * share:.0f} % of the test windows lie within {NEAR * length:g} s of a training one"
    )
    if share > MANY:
        fix = (
            "neighbours look alike, so scores are too good for a new day: set data.split to "
            f"'session' or 'subject', or data.apart to {NEAR * length:g} seconds"
        )
        yield Finding("warning", "nearness", text, fix)
    else:
        yield Finding("note" if share else "ok", "nearness", text)


def _doubles(windows: Windows) -> int:
    keys, varied = _hashes(windows)
    trained = keys[(windows.split == TRAIN) & varied]
    others = keys[((windows.split == VAL) | (windows.split == TEST)) & varied]
    return int(np.isin(others, trained).sum())


def _hashes(windows: Windows, rows: int = 4096) -> tuple[Array, Array]:
    """(N,) one number per window, equal for equal windows, and whether it holds so many different
    values that it cannot be equal by chance: of an empty room or a slow heart rate it can."""
    digests = [hashlib.blake2b(digest_size=8) for _ in range(len(windows))]
    varied = np.zeros(len(windows), bool)
    for m in windows.modalities:
        for at in range(0, len(windows), rows):
            part = np.ascontiguousarray(windows.inputs[m][at : at + rows])
            known = np.isfinite(part)
            flat = np.where(known, part, 0).reshape(len(part), -1)
            different = 1 + (np.diff(np.sort(flat, 1), axis=1) != 0).sum(1)
            varied[at : at + rows] |= different >= DISTINCT
            for digest, row in zip(digests[at : at + rows], flat, strict=True):
                digest.update(row.data)
        windows.release()
    keys = np.frombuffer(b"".join(d.digest() for d in digests), np.int64)
    return keys, varied


def _some(ids: Array) -> str:
    text = ", ".join(str(i) for i in ids[:5])
    return text + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
