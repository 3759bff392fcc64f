"""What a method can do, as the method itself says. The contract suite names no method: it asks
here."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from communis import CommunisError, methods
from communis.core import diagnostics
from communis.core.contract import AfterExchange, Method
from communis.core.diagnostics import Diagnostic
from communis.core.plugins import find, names
from communis.exchange.wire import payload_types
from communis.methods import parts
from communis.methods.parts import diffusion
from communis.methods.parts.sharing import Sharing


@dataclass(frozen=True)
class Abilities:
    raw_data: bool  # clients hand over raw windows, and one pooled client trains
    sends: bool  # clients send something
    after_exchange: bool  # clients work after the exchange
    prepares: bool  # clients work before they predict, beyond what all sharing methods do
    shares: bool  # clients share a model, or parts of one
    averages: bool  # the statistics of BatchNorm may be averaged with it


@cache
def abilities(name: str) -> Abilities:
    kind = find("methods", name)
    up = payload_types(kind)[3]
    raw_data = kind().needs.raw_data
    shares = issubclass(kind, Sharing)
    return Abilities(
        raw_data=raw_data,
        sends=not raw_data and up is not type(None),
        after_exchange=issubclass(kind, AfterExchange),
        prepares=kind.prepare not in (Method.prepare, Sharing.prepare),
        shares=shares,
        averages=shares and _takes(kind, buffers="average"),
    )


@cache
def declared_diagnostics() -> list[Diagnostic]:
    """All diagnostics that a run's log can hold: those of the library and those of methods."""
    modules = [diagnostics]
    for room in (methods, parts, diffusion):
        for module in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
            modules.append(importlib.import_module(module.name))
    constants = [value for module in modules for value in vars(module).values()]
    return [value for value in constants if isinstance(value, Diagnostic)]


def offered(name: str, **settings: Any) -> dict[str, Any]:
    """Those of the settings that the method has."""
    known = [field.name for field in fields(find("methods", name))]
    return {key: value for key, value in settings.items() if key in known}


def _takes(kind: Any, **settings: Any) -> bool:
    try:
        kind(**settings)
    except CommunisError:
        return False
    return True


METHODS = names("methods")
FEDERATED = [name for name in METHODS if not abilities(name).raw_data]
SENDING = [name for name in METHODS if abilities(name).sends]
SETTLING = [name for name in METHODS if abilities(name).after_exchange]
SHARING = [name for name in METHODS if abilities(name).shares]
AVERAGING = [name for name in METHODS if abilities(name).averages]
