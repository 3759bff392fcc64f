"""Ctrl-C and SIGTERM while the command starts end in one line.

Importing torch takes seconds, in which Python would answer with a traceback, or with nothing. A
program that imports communis keeps its own way with signals.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

STOPPED = 130  # exit code after Ctrl-C
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def stop_in_one_line(as_module: bool) -> None:
    """Until `ready`; as_module: by python -m communis."""
    called = os.path.basename(sys.argv[0]) if sys.argv else ""
    as_script = called in ("communis", "communis.exe")
    worker = "--multiprocessing-fork" in sys.orig_argv  # is called as its parent is
    if (as_module or as_script) and not worker:
        for number in _SIGNALS:
            signal.signal(number, _leave)


def ready() -> None:
    """From here on both signals interrupt the command, which says so itself."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.default_int_handler)


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """At once: what is half imported cannot be tidied up."""
    os.write(2, b"stopped before anything was begun\n")
    os._exit(STOPPED)
