"""What holds for the command from its first moment: Ctrl-C and SIGTERM while it starts end in one
line, and no process that it starts imports anything from the folder it is called in.

Importing torch takes seconds, in which Python would answer with a traceback, or with nothing. A
program that imports communis keeps its own way with both.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

STOPPED = 130  # exit code after Ctrl-C
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def begin(as_module: bool) -> None:
    """as_module: by python -m communis. Signals end in one line until `ready`."""
    called = os.path.basename(sys.argv[0]) if sys.argv else ""
    if not as_module and called not in ("communis", "communis.exe"):
        return
    # Workers that are not forked start as python -c, which looks into the working folder first.
    os.environ["PYTHONSAFEPATH"] = "1"
    if "--multiprocessing-fork" not in sys.orig_argv:  # a worker is called as its parent is
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
