"""Reads files of strangers for `apart.py`, in a process of its own, so that a damaged one harms
nothing else. MATLAB files: scipy's reader is compiled code, and some damaged files crash the
process that reads them (two of 4,000 changes of a single byte). Pickles of arrays: some small ones
ask for more memory than there is.

Run as a file, so that it imports nothing but what it reads with. Its arguments are the kind of
files, "matlab" or "pickle", and the bytes of memory that it may take. For every line on its input,
a path as JSON, it writes an answer, what the file holds or why not: how many parts there are, the
length of each, eight bytes per number, and the parts. The first is a pickle, the others are the
arrays in it, which are not copied for this.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

Reader = Callable[[BinaryIO], Any]


class Arrays(pickle.Unpickler):
    """Reads arrays and plain objects only: a pickle may otherwise run any code."""

    allowed = frozenset(
        {
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("numpy._core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "scalar"),
            ("numpy._core.numeric", "_frombuffer"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core.", "numpy._core.")  # as NumPy 1 wrote it
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not an array")
        return super().find_class(module, name)


def reader(kind: str) -> Reader:
    """What reads a file of this kind."""
    if kind == "matlab":
        from scipy.io import loadmat

        read: Reader = loadmat
        return read
    import numpy  # noqa: F401  # what it takes does not count against the limit

    return lambda file: plain(Arrays(file).load())


def plain(value: Any) -> Any:
    """The same objects, made anew: arrays whose type was damaged would crash whoever gets them.
    Arrays of objects become lists."""
    import numpy as np

    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, np.ndarray):
        return plain(value.tolist()) if value.dtype.hasobject else value.view(value.dtype.str)
    if value is None or isinstance(value, str | bytes | int | float | complex):
        return value
    raise TypeError(f"it holds a {type(value).__name__}")


def limit(size: int) -> None:
    """Lets this process take so many more bytes, where the system can see to that."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + size, taken + size))
    except (ImportError, OSError, ValueError):
        pass  # not Linux, or a tighter limit is there already


def answer(read: Reader, path: str) -> list[bytes | memoryview]:
    """The parts of what the file holds, or of why it cannot be read."""
    arrays: list[pickle.PickleBuffer] = []
    try:
        with open(path, "rb") as file:
            found = pickle.dumps((True, read(file)), protocol=5, buffer_callback=arrays.append)
        return [found, *(array.raw() for array in arrays)]
    except Exception as error:  # readers raise many kinds for files that are cut short
        return [pickle.dumps((False, (type(error).__name__, str(error))))]


def main() -> None:
    read = reader(sys.argv[1])
    limit(int(sys.argv[2]))
    for line in sys.stdin.buffer:
        parts = answer(read, json.loads(line))
        for number in (len(parts), *(len(part) for part in parts)):
            sys.stdout.buffer.write(number.to_bytes(8, "little"))
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
