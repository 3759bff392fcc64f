"""What tells one experiment from another: a checkpoint is only continued by its own."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass


def digest(*parts: object) -> str:
    """Of dataclasses, by what differs from their defaults, and of whatever else has a `repr`."""
    return hashlib.sha256(repr([_told(part) for part in parts]).encode()).hexdigest()


def _told(thing: object) -> object:
    """Its name and what differs from the defaults: a setting that is new leaves it as it is."""
    if not is_dataclass(thing):
        return thing
    own = {f.name: v for f in fields(thing) if (v := getattr(thing, f.name)) != f.default}
    return type(thing).__qualname__, sorted(own.items())
