"""`python -m communis` imports nothing from the folder it is called in.

Python looks there first, so a file `torch.py` in a downloaded folder would run. The command
`communis` never does; this makes the two alike. Imported before everything else.
"""

from __future__ import annotations

import sys
from itertools import pairwise


def leave_working_folder() -> None:
    asked = sys.orig_argv[1:]
    as_module = any(pair == ("-m", "communis") for pair in pairwise(asked))
    if as_module and not sys.flags.safe_path:
        del sys.path[0]
