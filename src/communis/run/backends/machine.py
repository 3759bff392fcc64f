"""Threads, memory and start of the worker processes on this machine."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


def default_start_method(device: str) -> str:
    """Returns "fork" where it is safe and quick (Linux, CPU), and "spawn" elsewhere: accelerators
    do not survive a fork."""
    return "fork" if sys.platform == "linux" and device == "cpu" else "spawn"


def default_workers(start_method: str) -> int:
    """Returns one worker per core. Where workers are spawned it returns 1, because a script that
    spawns processes must protect its main module, and not every script does."""
    return os.cpu_count() or 1 if start_method == "fork" else 1


def keep_freed_memory() -> None:
    """Makes glibc keep freed blocks: training frees and allocates the same megabytes in every step,
    and returning them to the system costs a page fault per 4 KB. Other C libraries are left
    alone."""
    if sys.platform == "linux":
        try:
            libc = ctypes.CDLL(None)
            libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
        except (OSError, AttributeError):  # another C library
            return


@contextmanager
def one_thread() -> Iterator[None]:
    """Restricts torch to one thread, so that sums have the same order as in a worker; restores the
    caller's number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def shared_memory() -> Path | None:
    """Returns a folder in shared memory with at least 512 MB free; None if there is none, and the
    system's temporary folder must serve."""
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return None
    room = os.statvfs(folder)
    return folder if room.f_bavail * room.f_frsize > 512 << 20 else None
