"""What the processes of this machine need to know: threads, memory, how workers start."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


def default_start_method(device: str) -> str:
    """fork where it is safe and quick (Linux, CPU); spawn elsewhere, and with accelerators, which
    do not survive a fork."""
    return "fork" if sys.platform == "linux" and device == "cpu" else "spawn"


def default_workers(start_method: str) -> int:
    """One per core; only this process where workers are spawned, because a script that spawns must
    protect its main module, and not every script does."""
    return os.cpu_count() or 1 if start_method == "fork" else 1


def keep_freed_memory() -> None:
    """Tells glibc to keep freed blocks: training frees and asks for the same megabytes every step,
    and handing them back to the system costs a page fault per 4 KB. A no-op elsewhere."""
    if sys.platform == "linux":
        try:
            libc = ctypes.CDLL(None)
            libc.mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
            libc.mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
        except (OSError, AttributeError):  # another C library
            return


@contextmanager
def one_thread() -> Iterator[None]:
    """Sums have one order, as in a worker; the caller's number of threads is restored."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def shared_memory() -> Path | None:
    """A folder in shared memory with room to spare; None: the system's temporary folder must do."""
    folder = Path("/dev/shm")
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return None
    room = os.statvfs(folder)
    return folder if room.f_bavail * room.f_frsize > 512 << 20 else None
