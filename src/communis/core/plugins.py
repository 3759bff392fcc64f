"""Plug-ins: methods and dataset sources are found by name. The name is that of the file, or
`package.module:Class` for third-party plug-ins. Networks outside of communis have such names too.

Loading a third-party plug-in runs its code. One that the user names on the command line or in
Python is loaded. One that a file names is loaded only if the user allows it, because the file may
come from somebody else.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

from communis.core.errors import CommunisError

ROOMS = {"methods": "communis.methods", "data": "communis.data.sources"}  # packages of plug-ins
_trusted: dict[str, None] = {}  # third-party plug-ins that may be loaded; "": all


def trust(*names: str) -> None:
    """Allows these third-party plug-ins to be loaded; without names, all of them."""
    _trusted.update(dict.fromkeys(names or ("",)))


def trust_asked(*words: str) -> None:
    """Allows the third-party plug-ins among words of the user, which come from no file."""
    for word in words:
        for name in re.split(r"[\[\]{}=,\"'\s]+", word):  # a word may be a list of names
            if ":" in name:
                trust(name)


def names(room: str) -> list[str]:
    """Returns the sorted names of the plug-ins of a room (`methods` or `data`)."""
    package = importlib.import_module(ROOMS[room])
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)


def find(room: str, name: str) -> type[Any]:
    """Returns the class of a plug-in."""
    if ":" in name:
        return _loaded(room, name)
    refuse_unknown(room, name)
    module = importlib.import_module(f"{ROOMS[room]}.{name}")
    own = [
        c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__
    ]
    return next(c for c in own if c.__name__.lower() == name.replace("_", ""))


def refuse_unknown(room: str, name: str) -> None:
    """Refuses a name that no plug-in of the room has, without importing any."""
    if name not in names(room):
        raise CommunisError(
            f"no {room.rstrip('s')} {name!r}{nearest(name, names(room))}; "
            f"there are {', '.join(names(room))}"
        )


def _loaded(room: str, name: str) -> type[Any]:
    """Returns the class of a plug-in by its dotted path."""
    own = name.partition(":")[0] in [f"{ROOMS[room]}.{module}" for module in names(room)]
    if not own:
        _refuse_untrusted(name, ROOMS[room])
    found: type[Any] = _attribute(name)
    if not (isinstance(found, type) and is_dataclass(found)):
        raise CommunisError(f"{name!r} is no dataclass, but methods and sources are")
    if room == "methods" and not issubclass(found, _method()):
        raise CommunisError(f"{name!r} is no method: it does not derive from communis.Method")
    if room == "data" and not callable(getattr(found, "load", None)):
        raise CommunisError(f"{name!r} is no source: it has no load(streams)")
    return found


def network(name: str) -> Any:
    """Returns what is at the dotted path of a network outside of communis."""
    _refuse_untrusted(name, "communis.models")
    return _attribute(name)


def _refuse_untrusted(name: str, place: str) -> None:
    if not {"", name} & _trusted.keys():
        raise CommunisError(
            f"{name!r} is code outside of {place}, and loading it runs it with all your rights: if "
            "you know it, allow it with --trust (from Python: communis.core.plugins.trust())"
        )


def _attribute(name: str) -> Any:
    """Returns what is at a dotted path `package.module:Class`."""
    module_name, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except BaseException as error:  # its code may raise anything, SystemExit included
        if isinstance(error, KeyboardInterrupt):
            raise
        raise CommunisError(f"cannot load {name!r}: {type(error).__name__}: {error}") from None


def _method() -> type[Any]:
    # Imported here, because the contract imports torch, which names and hints do not need.
    from communis.core.contract import Method

    return Method


def nearest(
    word: str,
    choices: list[str],
    say: Callable[[str], str] = lambda close: f" (did you mean {close!r}?)",
) -> str:
    """Returns a hint at the choice that is spelled most like `word`; empty if none is similar."""
    close = difflib.get_close_matches(word, choices, n=1)
    return say(close[0]) if close else ""
