"""Memory: how much can still be had, so that what a file announces is weighed before it is
built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from communis.core import CommunisError

LIMITS = Path("/sys/fs/cgroup")  # of a container


def available() -> int:
    """Bytes that can still be had; a number beyond all bounds where the system does not tell."""
    return min(_free(), _left_of_container())


def room(where: object, size: float, what: str) -> None:
    """An error if so many bytes are not to be had; `where` is the file that asks for them."""
    free = available()
    if not size <= free:
        raise CommunisError(
            f"{where}: {what} would take {gigabytes(size)} of memory, {gigabytes(free)} are free; "
            "the file is damaged, or too large for this machine"
        )


def gigabytes(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size < 1e15 else f"{size / 1e9:.0e} GB"


def _free() -> int:
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        told = dict(line.split(":", 1) for line in lines)
        return 1024 * int(told["MemAvailable"].split()[0])
    except (OSError, ValueError, KeyError):  # not Linux
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return sys.maxsize


def _left_of_container() -> int:
    try:
        most, used = ((LIMITS / f"memory.{name}").read_text("ascii") for name in ("max", "current"))
        return max(0, int(most) - int(used))
    except (OSError, ValueError):  # none, or no limit
        return sys.maxsize
