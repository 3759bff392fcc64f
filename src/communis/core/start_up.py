"""The start of the command `communis`: Ctrl-C and SIGTERM end it with a one-line message, and the
processes that it starts import nothing from the working folder.

Importing torch takes seconds, during which Python answers a signal with a traceback or not at all.
A program that imports communis keeps its own signal handlers and its own path.
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
    """Sets up the process if it is the command. Until `ready`, a signal ends it with a one-line
    message. as_module: the command was started by python -m communis."""
    called = os.path.basename(sys.argv[0]) if sys.argv else ""
    if not as_module and called not in ("communis", "communis.exe"):
        return
    # Workers that are not forked start as python -c, which searches the working folder first.
    os.environ["PYTHONSAFEPATH"] = "1"
    if "--multiprocessing-fork" not in sys.orig_argv:  # workers have the name of their parent
        for number in _SIGNALS:
            signal.signal(number, _leave)


def ready() -> None:
    """From now on both signals interrupt the command, which reports it."""
    for number in _SIGNALS:
        if signal.getsignal(number) is _leave:
            signal.signal(number, signal.default_int_handler)


def leaving() -> None:
    """The command is done. A further signal ends the process without a word: Python would answer it
    with a traceback of what it cleans up."""
    # Elsewhere nobody sets this handler for SIGTERM, and the process is not the command.
    if signal.getsignal(signal.SIGTERM) is signal.default_int_handler:
        for number in _SIGNALS:
            signal.signal(number, lambda *_: os._exit(STOPPED))


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    """Ends the process at once: modules that are imported by half cannot be cleaned up."""
    os.write(2, b"stopped before anything was begun\n")
    os._exit(STOPPED)
