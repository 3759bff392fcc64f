"""The power is cut at some moment of a run: ext4 in an image; a copy of the image, taken while the
run is under way, is the disk as the cut left it. Needs root on Linux.

The mounts are in a namespace of the process that does the case: they go with it, whatever ends it.
"""

from __future__ import annotations

import ctypes
import filecmp
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.faults.assault.case import Case
from tests.faults.assault.experiment import Forked
from tests.faults.assault.kills import gone, interrupted, resumed
from tests.faults.assault.outcome import Outcome

LIMIT = 180.0
IMAGE = 48 << 20  # bytes of the file system that is cut
COPIES = 20  # until two in a row are the same
NEW_MOUNTS = 0x00020000  # CLONE_NEWNS


def missing() -> str:
    """What is needed and not here; empty if nothing is."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "root on Linux"
    tools = [name for name in ("mkfs.ext4", "mount", "umount") if shutil.which(name) is None]
    return ", ".join(tools)


def attempt(case: Case) -> Outcome:
    _own_mounts()
    rng = case.rng
    workers = int(rng.integers(1, 3))
    image, after = case.scratch / "disk.img", case.scratch / "cut.img"
    with image.open("wb") as file:
        file.truncate(IMAGE)
    _command("mkfs.ext4", "-q", "-F", str(image))

    def cut(process: Forked) -> None:
        os.killpg(process.pid, signal.SIGSTOP)
        _snapshot(image, after)
        os.killpg(process.pid, signal.SIGKILL)

    with _mounted(image, case.scratch / "disk") as disk:
        process = interrupted(case, disk / "run", workers, rng, cut)
        process.wait()
        gone(process)  # its workers keep the disk busy until then
    folder = case.scratch / "run"
    with _mounted(after, case.scratch / "after") as disk:
        if (disk / "run").exists():
            shutil.copytree(disk / "run", folder)
    shutil.copytree(folder, case.scratch / "interrupted") if folder.exists() else None
    return resumed(case, folder)


def _snapshot(image: Path, to: Path) -> None:
    """The image as it is at one moment. While the system writes to it, a copy is a mixture of
    several, which no disk can hold; so it is copied until it was the same twice."""
    second = to.with_suffix(".second")
    for _ in range(COPIES):
        _command("cp", "--sparse=always", str(image), str(to))
        _command("cp", "--sparse=always", str(image), str(second))
        if filecmp.cmp(to, second, shallow=False):
            second.unlink()
            return
    raise RuntimeError(f"{image}: the system does not stop writing to it")


@cache
def _own_mounts() -> None:
    """This process and those that it starts see mounts that nobody else does."""
    if ctypes.CDLL(None, use_errno=True).unshare(NEW_MOUNTS) != 0:
        raise OSError(ctypes.get_errno(), "no namespace for mounts")
    _command("mount", "--make-rprivate", "/")


@contextmanager
def _mounted(image: Path, at: Path) -> Iterator[Path]:
    at.mkdir()
    _command("mount", "-o", "loop", str(image), str(at))
    try:
        yield at
    finally:
        _command("umount", str(at))


def _command(*words: str) -> None:
    subprocess.run(words, check=True)
