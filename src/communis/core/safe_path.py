"""`python -m communis` imports nothing from the working folder.

Python searches that folder first, so a file `torch.py` in a downloaded folder would be run. The
command `communis` does not search it; with this module, both behave alike. It is imported before
everything else and imports no module that a file in that folder could replace, not even
`__future__`.
"""

import sys


def leave_working_folder() -> bool:
    """Removes the working folder from the path of `python -m communis`. Returns whether the process
    was started like that."""
    # While Python searches for the module of -m, the name of the program is "-m".
    as_module = sys.argv[:1] == ["-m"] and _is_communis(sys.orig_argv)
    if as_module and not sys.flags.safe_path:
        del sys.path[0]
    return as_module


def _is_communis(words: list[str]) -> bool:
    """Returns whether -m names communis or one of its modules: `-m communis`, `-um communis`,
    `-mcommunis`."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word.startswith("-") and not word.startswith("--") and "m" in word:
            name = word.partition("m")[2] or after
            if name == "communis" or name.startswith("communis."):
                return True
    return False
