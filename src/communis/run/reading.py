"""A file or preset -> its table with `key=value` overrides. Refuses what can be refused before the
training code is imported."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from communis.core.errors import CommunisError
from communis.core.plugins import trust_asked
from communis.core.settings import SchemaError, refuse_strange
from communis.run import grid, keys, presets
from communis.run.grid import Table


def read(
    source: str, overrides: Sequence[str] = (), instead: Mapping[str, Any] = MappingProxyType({})
) -> tuple[Table, list[str], str]:
    """Returns the table, the overridden keys and the name of the source in messages. instead:
    values that replace the file's own; overrides win over them."""
    text, where = presets.read(source)
    trust_asked(*(override.partition("=")[2] for override in overrides))
    try:
        table = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError, RecursionError) as error:
        raise SchemaError(f"{where}: not valid TOML: {error}") from None
    table |= instead
    try:
        refuse_strange(table)
        changed = [key for override in overrides for key in grid.override(table, override)]
        refuse_strange(table)
        keys.refuse_unknown(table)
    except CommunisError as error:
        raise SchemaError(f"{where}: {error}") from None
    return table, changed, where
