"""Checks whether something fits into memory before it is created.

Linux grants memory that it does not have and kills the process that uses it, so the creation of an
array that is too large does not always fail. The estimates are rough: they refuse what is far too
large and name the setting to lower.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from communis.core.errors import CommunisError

_MEMINFO = Path("/proc/meminfo")
LIMITS = Path("/sys/fs/cgroup")  # limits of a container
_SIGNS = (  # parts of the messages of torch and NumPy when memory is exhausted
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "Unable to allocate",
    "Storage size calculation overflowed",
    "array is too big",
    "Maximum allowed size exceeded",
    "Maximum allowed dimension exceeded",
    "numel: integer multiplication overflow",
)
SHORT = "this needs more memory than there is: make windows, models or the cohort smaller"


def available() -> int:
    """The number of bytes that this process may still use; very large if it is unknown."""
    return min(_free(), _left_of_container())


def require(needed: float, what: str, lower: str) -> None:
    """Refuses what needs more bytes than are available. lower: the settings that make it
    smaller."""
    free = available()
    if needed > free:
        raise CommunisError(
            f"{what} would take about {amount(needed)} of memory, but {amount(free)} are "
            f"available here: lower {lower}"
        )


def room(where: object, needed: float, what: str) -> None:
    """Refuses a file that announces more bytes than are available. where: the file."""
    free = available()
    if not needed <= free:  # NaN is refused too
        raise CommunisError(
            f"{where}: {what} would take {amount(needed)} of memory, but {amount(free)} are "
            "available here: the file is damaged, or too large for this machine"
        )


def is_short(error: BaseException) -> bool:
    """Whether an error reports a lack of memory."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS)


def _free() -> int:
    try:
        lines = _MEMINFO.read_text("ascii").splitlines()
        (line,) = [line for line in lines if line.startswith("MemAvailable:")]
        return 1024 * int(line.split()[1])
    except (OSError, ValueError):  # not on Linux
        return _physical()


def _physical() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):  # not on Windows either
        return sys.maxsize


def _left_of_container() -> int:
    try:
        most = int((LIMITS / "memory.max").read_text("ascii"))
        used = int((LIMITS / "memory.current").read_text("ascii"))
    except (OSError, ValueError):  # no container, or the word "max"
        return sys.maxsize
    return max(0, most - used)


def amount(size: float) -> str:
    return f"{size / 1e9:,.1f} GB" if size < 1e15 else f"{size / 1e9:.0e} GB"
