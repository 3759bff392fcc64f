"""What a dataset holds as a whole: copies, classes, who is in which part, and what leaks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from communis.doctor.finding import Finding
from communis.recordings.recording import Array, Recording
from communis.recordings.splits import separated
from communis.recordings.windows import TEST, TRAIN, UNUSED, VAL, Windows

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
                "remove all but one: copies in training and test make scores too good",
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
        yield Finding(
            "note",
            "subjects",
            f"{len(both)} of {len(np.unique(windows.owner))} are in training and in test",
            "right for models that know their user; to judge on new people set data.split to "
            "'subject'",
        )
    else:
        yield Finding("ok", "subjects", "nobody is in training and in test")


def leaks(windows: Windows) -> Iterator[Finding]:
    """Windows of different parts that share samples, or that are copies of each other."""
    apart = separated(windows.split, windows.recording, windows.start, windows.seconds, 0.0)
    shared = int((apart != windows.split).sum())
    if shared:
        yield Finding(
            "error",
            "leakage",
            f"{shared} windows share samples with windows of another part",
            "choose data.split: time, subject, session or trial",
        )
    elif windows.notes:
        yield Finding("error", "leakage", "; ".join(windows.notes), "choose another data.split")
    doubles = _doubles(windows)
    if doubles:
        yield Finding(
            "error",
            "leakage",
            f"{doubles} windows of validation or test are copies of training windows",
            "remove copied recordings",
        )
    if not shared and not windows.notes and not doubles:
        yield Finding("ok", "leakage", "no window shares samples with one of another part")


def _doubles(windows: Windows) -> int:
    keys = _hashes(windows)
    trained = keys[windows.split == TRAIN]
    others = keys[(windows.split == VAL) | (windows.split == TEST)]
    return int(np.isin(others, trained).sum())


def _hashes(windows: Windows, rows: int = 4096) -> Array:
    """(N,) one number per window; equal windows have equal numbers, others hardly ever."""
    rng = np.random.default_rng(0)
    total = np.zeros(len(windows), np.float64)
    for m in windows.modalities:
        x = windows.inputs[m]
        width = int(np.prod(x.shape[1:]))
        mix = rng.standard_normal(width)
        for at in range(0, len(x), rows):
            flat = np.nan_to_num(np.asarray(x[at : at + rows], np.float64).reshape(-1, width))
            # Constant windows (a sensor at rest, an empty room) are alike without being copies.
            total[at : at + rows] += flat @ mix + np.where(np.ptp(flat, 1) > 0, 0.0, np.nan)
    return total


def _some(ids: Array) -> str:
    text = ", ".join(str(i) for i in ids[:5])
    return text + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
