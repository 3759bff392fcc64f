"""Ctrl-C waits until a round is both on disk and in memory."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Delays Ctrl-C until the end of the block, which must be short. In threads other than the main
    one, Ctrl-C has no effect anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    noted = []
    usual = signal.signal(signal.SIGINT, lambda number, _: noted.append(number))
    try:
        yield
    finally:
        # None: the handler was not set from Python, and cannot be set again from there.
        signal.signal(signal.SIGINT, signal.default_int_handler if usual is None else usual)
        if noted:
            signal.raise_signal(signal.SIGINT)
