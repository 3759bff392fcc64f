"""A file or preset -> its table with `key=value` overrides. Refuses what can be refused before the
training code is imported."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from communis.core.errors import CommunisError
from communis.core.plugins import trust_asked
from communis.core.settings import SchemaError, refuse_strange
from communis.run import grid, keys, presets
from communis.run.grid import Table

# Keys that name files and folders. They are searched beside the file that names them, and then in
# the working folder.
PATHS = (
    ("data", "folder"),
    ("fleet", "trace"),
    ("fleet", "profiles"),
    ("fleet", "weights"),
    ("fleet", "start"),
)


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
    if where == str(Path(source)):  # a file, and no preset
        _place(table, Path(source).parent)
    table |= instead
    try:
        refuse_strange(table)
        changed = [key for override in overrides for key in grid.override(table, override)]
        refuse_strange(table)
        keys.refuse_unknown(table)
    except CommunisError as error:
        raise SchemaError(f"{where}: {error}") from None
    return table, changed, where


def _place(table: Table, folder: Path) -> None:
    """Replaces paths by those beside the file, where something is there."""
    for section, key in PATHS:
        settings = table.get(section)
        name = settings.get(key) if isinstance(settings, dict) else None
        if not isinstance(settings, dict) or not isinstance(name, str) or not name:
            continue
        try:
            if (folder / name).exists():
                settings[key] = str(folder / name)
        except (OSError, ValueError):
            continue  # no path; the setting is refused where it is used
    axes = table.get("grid")
    for levels in axes.values() if isinstance(axes, dict) else ():
        for level in levels.values() if isinstance(levels, dict) else ():
            if isinstance(level, dict):
                _place(level, folder)
