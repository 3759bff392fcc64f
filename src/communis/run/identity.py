"""The identity of an experiment: a checkpoint is continued only by the experiment that wrote it."""

from __future__ import annotations

import hashlib
from dataclasses import fields, is_dataclass


def digest(*parts: object) -> str:
    """Returns a digest of dataclasses and of other objects with a `repr`."""
    return hashlib.sha256(repr([_identity(part) for part in parts]).encode()).hexdigest()


def _identity(part: object) -> object:
    """Returns the name of a dataclass and the fields that differ from their defaults. A setting
    that a newer version adds does not change it."""
    if not is_dataclass(part):
        return part
    values = {f.name: getattr(part, f.name) for f in fields(part)}
    own = {f.name: values[f.name] for f in fields(part) if values[f.name] != f.default}
    return type(part).__qualname__, sorted(own.items())
