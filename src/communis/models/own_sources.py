"""The source of a class of the user, as far as it is the user's: its module, the modules of its
base classes, and the modules that these import."""

from __future__ import annotations

import hashlib
import inspect
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

_SCRIPT = ("__main__", "__mp_main__")  # of this process, and of one that is not forked
_INSTALLED = ("stdlib", "platstdlib", "purelib", "platlib")


def digest(kind: type[Any]) -> str:
    """Returns the SHA-256 of the files in the order of their modules' names. A class that was typed
    into a script or a notebook has its own source only: the script also starts the run, and may
    change."""
    found = hashlib.sha256()
    for text in _texts(kind):
        found.update(hashlib.sha256(text.encode()).digest())
    return found.hexdigest()


def _texts(kind: type[Any]) -> list[str]:
    bases = [base for base in kind.__mro__ if _file(base.__module__)]
    typed = [base for base in bases if base.__module__ in _SCRIPT]
    modules: dict[str, Path] = {}
    for base in bases:
        if base not in typed:
            _add(base.__module__, modules)
    return [*map(_source, typed), *(modules[m].read_text("utf-8") for m in sorted(modules))]


def _source(kind: type[Any]) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed at a prompt
        return ""


def _add(name: str, modules: dict[str, Path]) -> None:
    """Adds a module of the user and those that it imports, by name."""
    file = _file(name)
    if file is None or name in modules or name in _SCRIPT:
        return
    modules[name] = file
    for other in _imported(sys.modules[name]):
        _add(other, modules)


def _imported(module: ModuleType) -> Iterator[str]:
    """Yields the modules of what a module holds: modules, classes and functions."""
    for value in list(vars(module).values()):
        if isinstance(value, ModuleType):
            yield value.__name__
        elif isinstance(value, type) or inspect.isfunction(value):
            yield value.__module__


def _file(name: str) -> Path | None:
    """Returns the file of a module of the user; None for what is installed or built in."""
    file = getattr(sys.modules.get(name), "__file__", None)
    if name in _SCRIPT:
        return Path(file or "")
    if file is None or not file.endswith(".py") or name.partition(".")[0] == "communis":
        return None
    path = Path(file).resolve()
    parts = {"site-packages", "dist-packages"} & {*path.parts}
    installed = [Path(sysconfig.get_path(key)).resolve() for key in _INSTALLED]
    return None if parts or any(path.is_relative_to(place) for place in installed) else path
