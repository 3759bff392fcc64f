"""Threads, memory and start of the worker processes on this machine."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread

import torch


def default_start_method(device: str) -> str:
    """Returns "fork" where it is safe and quick (Linux, CPU), and "spawn" elsewhere: accelerators
    do not survive a fork."""
    return "fork" if sys.platform == "linux" and device == "cpu" else "spawn"


def cores() -> int:
    """Returns the number of cores that this process may use: a batch system may grant fewer than
    the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_workers(start_method: str) -> int:
    """Returns one worker per core. Where workers are spawned it returns 1, because a script that
    spawns processes must protect its main module, and not every script does."""
    return cores() if start_method == "fork" else 1


def start(process: BaseProcess) -> None:
    """Starts a process. Newer Pythons warn of any fork beside a thread; the other threads draw a
    progress bar or wait for the end of a parent."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()


def serve_parent() -> None:
    """Prepares this process to work for its parent: it ends when the parent has ended, ignores
    Ctrl-C and SIGTERM, which reach the whole group of processes and which the parent answers, and
    computes with one thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    keep_freed_memory()


def _end_with_parent() -> None:
    """Ends this process when its parent has ended. A thread has to wait for that: forked processes
    hold the parent's end of the pipe open, so that reading a message of which the parent sent only
    a part would never return."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


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
