"""Apart: a separate process (`apart_child.py`) reads files whose readers may crash or allocate too
much memory, within limits of memory and time. One process reads many files."""

from __future__ import annotations

import atexit
import io
import json
import math
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any, Literal

from communis.core.memory import amount, available
from communis.data.recordings.apart_child import Arrays

CHILD = Path(__file__).with_name("apart_child.py")
SHARE = 2  # the child gets this part of the free memory: both processes hold the data for a while
PATIENCE = 30.0  # seconds for a file, plus one for each megabyte
TICK = 0.1  # seconds between two checks of the deadline


class UnreadError(Exception):
    """A file could not be read; `kind` is the name of the child's error, the text its message."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text or kind)
        self.kind = kind


class _Answer(Arrays):
    """Builds arrays and numbers only: a malicious file may control the process that read it."""

    allowed = Arrays.allowed | {
        ("builtins", "complex"),
        ("scipy.io.matlab._mio5_params", "MatlabFunction"),  # these are arrays too
        ("scipy.io.matlab._mio5_params", "MatlabObject"),
        ("scipy.io.matlab._mio5_params", "MatlabOpaque"),
    }


class Reader:
    """The reading process: started when it is first needed, and again after a crash."""

    def __init__(self, kind: Literal["matlab", "pickle"]) -> None:
        self.kind = kind
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # the process that started it: a forked process needs its own
        self._limit = ""  # its memory limit, for messages
        self._deadline = math.inf  # time at which reading the current file must be complete
        self._lock = threading.Lock()  # an answer must reach the thread that asked

    def read(self, path: Path) -> Any:
        """Returns the content of a file; raises OSError, MemoryError or UnreadError if it cannot be
        read."""
        path.open("rb").close()
        with self._lock:
            succeeded, content = self._asked(path)
        if succeeded:
            return content
        kind, text = content
        if kind == "MemoryError":
            raise MemoryError(f"more than {self._limit}")
        raise UnreadError(kind, text)

    def _asked(self, path: Path) -> tuple[bool, Any]:
        """Returns the child's answer: (True, content), or (False, (kind of error, message))."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        seconds = PATIENCE + path.stat().st_size / 1e6
        self._deadline = time.monotonic() + seconds
        try:
            process.stdin.write(json.dumps(str(path)).encode() + b"\n")
            process.stdin.flush()
            first, *arrays = _parts(process.stdout)
            answer: tuple[bool, Any] = _Answer(io.BytesIO(first), buffers=arrays).load()
            return answer
        except pickle.UnpicklingError as error:
            self.close()
            return False, ("UnpicklingError", f"the answer of the process that read it: {error}")
        except (BrokenPipeError, EOFError):
            code = process.wait()
        except BaseException:  # otherwise the next file would get the pending answer
            self.close()
            raise
        finally:
            late = time.monotonic() > self._deadline
            self._deadline = math.inf
        self.close()
        if late:
            return False, ("TimeoutError", f"it was not read within {seconds:.0f} s")
        return False, ("crash", f"it crashed the process that read it, exit code {code}")

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid():
            share = available() // SHARE
            self._limit = amount(share)
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(CHILD), self.kind, str(share)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # libraries print warnings about damaged files
            )
            threading.Thread(target=self._watch, args=(self._process,), daemon=True).start()
        return self._process

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Kills the process after the deadline of a file."""
        while process.poll() is None:
            if time.monotonic() > self._deadline:
                process.kill()
            time.sleep(TICK)

    def close(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None


def _parts(stream: IO[bytes]) -> list[bytearray]:
    """Returns the parts of an answer."""
    (count,) = _numbers(stream, 1)
    return [_filled(stream, size) for size in _numbers(stream, count)]


def _numbers(stream: IO[bytes], count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", _filled(stream, 8 * count))


def _filled(stream: IO[bytes], size: int) -> bytearray:
    """Returns `size` bytes; raises EOFError if the stream ends before."""
    content = bytearray(size)
    remaining = memoryview(content)
    while remaining:
        count = stream.readinto(remaining)  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        remaining = remaining[count:]
    return content


matlab_files = Reader("matlab")
pickles = Reader("pickle")
atexit.register(matlab_files.close)
atexit.register(pickles.close)
