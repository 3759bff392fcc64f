"""Whether something fits into memory, asked before it is built.

Linux promises memory that it does not have and kills the process that uses it, so an array that is
too large does not always fail when it is made. Estimates are rough and on the safe side: they are
there to refuse what is out of all proportion, with the setting to lower.
"""

from __future__ import annotations

import os
from pathlib import Path

from communis.core import CommunisError

_MEMINFO = Path("/proc/meminfo")
_LIMIT = Path("/sys/fs/cgroup/memory.max")  # of a container
_SIGNS = (  # how torch and numpy say that there is too little
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


def available() -> float:
    """Bytes that this process may still use; infinite where the system does not say."""
    return min(_free(), _allowed())


def require(needed: float, what: str, lower: str) -> None:
    """Refuses what needs more bytes than there are. lower: the settings that make it smaller."""
    there = available()
    if needed > there:
        raise CommunisError(
            f"{what} would take about {_amount(needed)} of memory, but {_amount(there)} are "
            f"available here: lower {lower}"
        )


def is_short(error: BaseException) -> bool:
    """Whether an error says that memory was not enough."""
    return isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS)


def _free() -> float:
    try:
        lines = _MEMINFO.read_text("ascii").splitlines()
        (line,) = [line for line in lines if line.startswith("MemAvailable:")]
        return 1024.0 * int(line.split()[1])
    except (OSError, ValueError):  # not on Linux
        return _physical()


def _physical() -> float:
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError, AttributeError):  # not on Windows either
        return float("inf")


def _allowed() -> float:
    try:
        return float(_LIMIT.read_text("ascii"))
    except (OSError, ValueError):  # no such limit, or the word "max"
        return float("inf")


def _amount(size: float) -> str:
    return f"{size / 2**30:,.1f} GB" if size < 2**60 else f"{size / 2**60:.3g} EB"
