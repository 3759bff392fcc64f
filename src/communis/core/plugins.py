"""Finding a method or a dataset source by name: the file name is the key; a third-party one is a
dotted path `package.module:Class`.

To load such a one is to run its code. A name that the user gave (on the command line, or from
Python) is loaded; one that stands in a file, which may be somebody else's, only if allowed.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from communis.core.contract import Method
from communis.core.errors import CommunisError

ROOMS = {"methods": "communis.methods", "data": "communis.data.sources"}  # where plug-ins are
_trusted: dict[str, None] = {}  # names that may be loaded; "": any


def trust(*names: str) -> None:
    """Allows these third-party plug-ins to be loaded; without names, all that files name."""
    _trusted.update(dict.fromkeys(names or ("",)))


def trust_asked(*words: str) -> None:
    """Allows the plug-ins among what the user said, for these are no words of a file."""
    for word in words:
        if ":" in word:
            trust(word.strip("\"' "))


def names(room: str) -> list[str]:
    """The plug-ins of a room (`methods` or `data`), sorted."""
    package = importlib.import_module(ROOMS[room])
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)


def find(room: str, name: str) -> type[Any]:
    """The plug-in class called `name`."""
    if ":" in name:
        return _loaded(room, name)
    if name not in names(room):
        raise CommunisError(
            f"no {room.rstrip('s')} {name!r}{nearest(name, names(room))}; "
            f"there are {', '.join(names(room))}"
        )
    module = importlib.import_module(f"{ROOMS[room]}.{name}")
    own = [
        c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__
    ]
    return next(c for c in own if c.__name__.lower() == name.replace("_", ""))


def _loaded(room: str, name: str) -> type[Any]:
    """A plug-in by its dotted path."""
    module_name, _, class_name = name.partition(":")
    own = module_name in [f"{ROOMS[room]}.{module}" for module in names(room)]
    if not own and not {"", name} & _trusted.keys():
        raise CommunisError(
            f"{name!r} is code outside of {ROOMS[room]}, and loading it runs it with all your "
            "rights: if you know it, allow it with --trust (from Python: "
            "communis.core.plugins.trust())"
        )
    try:
        found: type[Any] = getattr(importlib.import_module(module_name), class_name)
    except BaseException as error:  # whatever its code does, leaving Python included
        if isinstance(error, KeyboardInterrupt):
            raise
        raise CommunisError(f"cannot load {name!r}: {type(error).__name__}: {error}") from None
    if not (isinstance(found, type) and is_dataclass(found)):
        raise CommunisError(f"{name!r} is no dataclass, as methods and sources are")
    if room == "methods" and not issubclass(found, Method):
        raise CommunisError(f"{name!r} is no method: it does not derive from communis.Method")
    if room == "data" and not callable(getattr(found, "load", None)):
        raise CommunisError(f"{name!r} is no source: it has no load(streams)")
    return found


def nearest(
    word: str,
    choices: list[str],
    say: Callable[[str], str] = lambda close: f" (did you mean {close!r}?)",
) -> str:
    """A hint at the choice that is spelled most like `word`; empty if none is near."""
    close = difflib.get_close_matches(word, choices, n=1)
    return say(close[0]) if close else ""


def settings(kind: type[Any]) -> dict[str, tuple[Any, str]]:
    """A plug-in's settings: default and meaning, the latter from the comment behind each field."""
    meanings: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if is_dataclass(base):
            found = re.findall(r"^    (\w+): [^=\n]+= .*?  # (.+)$", inspect.getsource(base), re.M)
            meanings |= dict(found)
    return {f.name: (f.default, meanings.get(f.name, "")) for f in fields(kind)}
