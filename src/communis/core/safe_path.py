"""`python -m communis` imports nothing from the folder it is called in.

Python looks there first, so a file `torch.py` in a downloaded folder would run. The command
`communis` never does; this makes the two alike. Imported before everything else, and importing
nothing that a file there could stand in for: not even `__future__`.
"""

import sys


def leave_working_folder() -> bool:
    """Whether this is python -m communis."""
    # While Python looks for the module of -m, that is what the program is called.
    as_module = sys.argv[:1] == ["-m"] and _is_communis(sys.orig_argv)
    if as_module and not sys.flags.safe_path:
        del sys.path[0]
    return as_module


def _is_communis(words: list[str]) -> bool:
    """Whether -m is for communis or a module of it: `-m communis`, `-um communis`, `-mcommunis`."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("-") and not word.startswith("--") and "m" in word:
            name = word.partition("m")[2] or after
            if name == "communis" or name.startswith("communis."):
                return True
    return False
