"""Finding a method or a dataset source by name: the file name is the key; a third-party one is a
dotted path `package.module:Class`."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from communis.core import CommunisError


def names(room: str) -> list[str]:
    """The plug-ins of a room (`methods` or `data`), sorted."""
    package = importlib.import_module(f"communis.{room}")
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__))


def find(room: str, name: str) -> type[Any]:
    """The plug-in class called `name`."""
    if ":" in name:
        module_name, _, class_name = name.partition(":")
        try:
            found: type[Any] = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise CommunisError(f"cannot load {name!r}: {error}") from None
        return found
    if name not in names(room):
        raise CommunisError(
            f"no {room.rstrip('s')} {name!r}{nearest(name, names(room))}; "
            f"there are {', '.join(names(room))}"
        )
    module = importlib.import_module(f"communis.{room}.{name}")
    own = [
        c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__
    ]
    return next(c for c in own if c.__name__.lower() == name.replace("_", ""))


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
