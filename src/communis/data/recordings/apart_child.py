"""The process that reads untrusted files for `apart.py`, so that a damaged file does no other harm.
scipy's reader of MATLAB files is compiled code, and some damaged files crash the process that reads
them. Some small pickles of arrays allocate more memory than there is.

It is run as a script, so that it imports only what it needs for reading. Its arguments are the kind
of the files, "matlab" or "pickle", and the number of bytes of memory that it may allocate. For
every line of its input, a path as JSON, it writes an answer, the content of the file or the error:
the number of parts, the length of each part, eight bytes per number, and the parts. The first part
is a pickle, the others are its arrays, which are not copied.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

Reader = Callable[[BinaryIO], Any]


class Arrays(pickle.Unpickler):
    """Builds arrays and plain objects only: other pickles can run any code."""

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
        module = module.replace("numpy.core.", "numpy._core.")  # the name in NumPy 1
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not an array")
        return super().find_class(module, name)


def reader(kind: str) -> Reader:
    """Returns the function that reads files of this kind."""
    if kind == "matlab":
        from scipy.io import loadmat

        read: Reader = loadmat
        return read
    import numpy  # noqa: F401  # imported now, as its memory must not count against the limit

    return lambda file: plain(Arrays(file).load())


def plain(value: Any) -> Any:
    """Returns the same objects, rebuilt: arrays with a damaged type would crash the other process.
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
    """Limits the memory of this process to `size` more bytes, if the system supports it."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + size, used + size))
    except (ImportError, OSError, ValueError):
        pass  # not Linux, or a lower limit is set already


def answer(read: Reader, path: str) -> list[bytes | memoryview]:
    """Returns the parts of an answer with the content of the file, or with the error."""
    arrays: list[pickle.PickleBuffer] = []
    try:
        with open(path, "rb") as file:
            content = pickle.dumps((True, read(file)), protocol=5, buffer_callback=arrays.append)
        return [content, *(array.raw() for array in arrays)]
    except Exception as error:  # readers raise many kinds of errors for truncated files
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
