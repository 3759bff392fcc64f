"""Reads MATLAB files for `matlab.py`, in a process of its own: scipy's reader is compiled code, and
some damaged files crash the process that reads them (two of 4,000 changes of a single byte).

Run as a file, so that it imports nothing but scipy. For every line on its input, a path as JSON, it
writes the length of an answer in eight bytes and the answer: what the file holds, or why not.
"""

from __future__ import annotations

import json
import pickle
import sys


def main() -> None:
    from scipy.io import loadmat

    for line in sys.stdin.buffer:
        try:
            with open(json.loads(line), "rb") as file:
                answer = True, loadmat(file)
            data = pickle.dumps(answer, protocol=5)
        except Exception as error:  # scipy raises many kinds for files that are cut short
            data = pickle.dumps((False, (type(error).__name__, str(error))), protocol=5)
        sys.stdout.buffer.write(len(data).to_bytes(8, "little") + data)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
