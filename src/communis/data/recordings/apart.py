"""Apart: files whose readers may crash or ask for any amount of memory are read by a process of
their own (`apart_child.py`), within limits. One process reads many files."""

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
SHARE = 2  # of the free memory one half is the child's: what it has read is there twice for a while
PATIENCE = 30.0  # seconds for a file, and one more for each of its megabytes
TICK = 0.1  # seconds between two looks at the clock


class UnreadError(Exception):
    """A file that could not be read: the kind of error, by its name, and what it says."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text or kind)
        self.kind = kind


class _Answer(Arrays):
    """Calls nothing but what makes arrays and numbers: a file may have taken over the process that
    read it."""

    allowed = Arrays.allowed | {
        ("builtins", "complex"),
        ("scipy.io.matlab._mio5_params", "MatlabFunction"),  # these are arrays too
        ("scipy.io.matlab._mio5_params", "MatlabObject"),
        ("scipy.io.matlab._mio5_params", "MatlabOpaque"),
    }


class Reader:
    """The process that reads, started when it is first needed and again if a file crashed it."""

    def __init__(self, kind: Literal["matlab", "pickle"]) -> None:
        self.kind = kind
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0  # the process that started it: one that was forked needs its own
        self._limit = ""  # of memory
        self._deadline = math.inf  # when the file that is being read must have been read
        self._one = threading.Lock()  # an answer must not reach a thread that did not ask

    def read(self, path: Path) -> Any:
        """What a file holds; OSError, MemoryError or UnreadError if it cannot be read."""
        path.open("rb").close()
        with self._one:
            fine, found = self._asked(path)
        if fine:
            return found
        kind, text = found
        if kind == "MemoryError":
            raise MemoryError(f"more than {self._limit}")
        raise UnreadError(kind, text)

    def _asked(self, path: Path) -> tuple[bool, Any]:
        """The child's answer."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        seconds = PATIENCE + path.stat().st_size / 1e6
        self._deadline = time.monotonic() + seconds
        try:
            process.stdin.write(json.dumps(str(path)).encode() + b"\n")
            process.stdin.flush()
            first, *arrays = _parts(process.stdout)
            found: tuple[bool, Any] = _Answer(io.BytesIO(first), buffers=arrays).load()
            return found
        except pickle.UnpicklingError as error:
            self.close()
            return False, ("UnpicklingError", f"the answer of the process that read it: {error}")
        except (BrokenPipeError, EOFError):
            code = process.wait()
        except BaseException:  # else the next file would get the answer that is still to come
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
                stderr=subprocess.DEVNULL,  # what libraries print of files that are damaged
            )
            threading.Thread(target=self._watch, args=(self._process,), daemon=True).start()
        return self._process

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Ends the process when its time for a file is over."""
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
    """The parts of an answer."""
    (count,) = _numbers(stream, 1)
    return [_filled(stream, size) for size in _numbers(stream, count)]


def _numbers(stream: IO[bytes], count: int) -> tuple[int, ...]:
    return struct.unpack(f"<{count}Q", _filled(stream, 8 * count))


def _filled(stream: IO[bytes], size: int) -> bytearray:
    """So many bytes, or EOFError."""
    found = bytearray(size)
    view = memoryview(found)
    while view:
        got = stream.readinto(view)  # type: ignore[attr-defined]
        if not got:
            raise EOFError
        view = view[got:]
    return found


matlab_files = Reader("matlab")
pickles = Reader("pickle")
atexit.register(matlab_files.close)
atexit.register(pickles.close)
