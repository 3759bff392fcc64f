"""The grid of an experiment: `[grid.AXIS.LEVEL]` tables -> one table per cell.

    [grid.H.severe]
    fleet.suites.preset = "severe"
    [grid.I.moderate]
    fleet.dropout.preset = "pamap2-moderate"

A level is a part of a configuration that is merged into the tables of the file. Neither a level nor
the settings of a single method may undo what is set with `--set key=value`.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Any

from communis.core.plugins import nearest
from communis.core.settings import SchemaError, shown

Table = dict[str, Any]
MOST_CELLS = 10_000
PARTS = (
    "data", "partition", "fleet", "method", "methods", "topology", "attack", "robust", "privacy",
    "run",
)  # tables that a level may set  # fmt: skip


def tables_by_cell(table: Table, changed: Sequence[str] = ()) -> dict[str, Table]:
    """Returns the table of every cell by its levels, such as "severe/moderate", in the order of the
    file; without a grid, the table itself under the name "". No level may set a key in
    `changed`."""
    base = {key: value for key, value in table.items() if key != "grid"}
    axes = table.get("grid", {})
    if axes == {}:
        return {"": base}
    for key in ("cell", "levels"):
        if key in base:
            raise SchemaError(
                f"{key}: names the cell of a single run; remove it from a grid's file"
            )
    _check(axes, changed)
    count = math.prod(map(len, axes.values()))
    if count > MOST_CELLS:
        raise SchemaError(f"grid: its axes make {count} cells, at most {MOST_CELLS} are allowed")
    base["levels"] = {axis: list(levels) for axis, levels in axes.items()}
    tables = {}
    for levels in product(*axes.values()):
        cell = dict(zip(axes, levels, strict=True))
        table_of_cell = {**base, "cell": cell}
        for axis, level in cell.items():
            table_of_cell = merged(table_of_cell, axes[axis][level])
        tables["/".join(levels)] = table_of_cell
    return tables


def override(table: Table, text: str) -> list[str]:
    """Sets a key of the table from a text `key=value`. Returns the key and, if the value is a
    table, the keys within it."""
    key, equals, value = (part.strip() for part in text.partition("="))
    path = [part.strip("\"'") for part in re.findall(r"""\"[^"]*"|'[^']*'|[^.]+""", key)]
    if not equals or not path:
        raise SchemaError(f"{text}: expected key=value, such as method.lr=0.1")
    if path[0] == "grid":
        _check_known(table.get("grid", {}), path)
    for parent in path[:-1]:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise SchemaError(f"--set {text}: {parent} is not a table")
    new = _read(value)
    table[path[-1]] = new
    key = dotted(path)
    if isinstance(new, dict):
        return [key, *_keys(new, f"{key}.")]
    return [key]


def _read(text: str) -> Any:
    """Returns the value that a text has in TOML, or the text itself if it is a bare word."""
    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except (ValueError, RecursionError) as error:  # thousands of digits, or nested too deeply
        raise SchemaError(f"--set: cannot read {shown(text)}: {error}") from None
    return parsed["value"] if len(parsed) == 1 else text


def refuse_ignored(
    changed: Sequence[str],
    run: Sequence[str],
    methods: Mapping[str, Table],
    variants: Mapping[str, Table],
) -> None:
    """Refuses to set method.KEY where a method or variant to be run has a KEY of its own, which
    would win, unless that was set too."""
    given = [key.removeprefix("method.") for key in changed if key.startswith("method.")]
    own = {f"variants.{name}": variants[name] for name in run if name in variants}
    method_names = [variants.get(name, {}).get("name", name) for name in run]
    own |= {f"methods.{name}": methods[name] for name in method_names if name in methods}
    for (where, settings), key in product(own.items(), given):
        own_key = f"{where}.{key}"
        set_too = any(f".{other}".endswith(f".{own_key}") for other in changed)
        if key != "name" and key in settings and not set_too:
            raise SchemaError(
                f"--set method.{key}: {where} sets it; change that: --set {own_key}=..."
            )


def dotted(path: Iterable[str]) -> str:
    """Returns a key as it is written in TOML."""
    return ".".join(
        name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else json.dumps(name, ensure_ascii=False)
        for name in path
    )


def merged(table: Table, part: Table) -> Table:
    """Returns `table` with the values of `part`: tables are merged, other values replaced."""
    both = {
        key: merged(table[key], value)
        for key, value in part.items()
        if isinstance(value, dict) and isinstance(table.get(key), dict)
    }
    return {**table, **part, **both}


def _check(axes: Any, changed: Sequence[str]) -> None:
    if not isinstance(axes, dict):
        raise SchemaError(f"grid: expected tables such as [grid.H.severe], got {shown(axes)}")
    for axis, levels in axes.items():
        if not isinstance(levels, dict) or not levels:
            raise SchemaError(
                f"grid.{axis}: expected tables such as [grid.{axis}.severe], got {shown(levels)}"
            )
        for level, part in levels.items():
            _check_level(dotted(["grid", axis, level]), part, changed)
    keys: dict[str, set[str]] = {axis: set() for axis in axes}
    for axis, levels in axes.items():
        for part in levels.values():
            keys[axis].update(_keys(part))
    for one, other in combinations(axes, 2):
        both = keys[one] & keys[other]
        if both:
            raise SchemaError(
                f"grid: axes {one} and {other} both set {min(both)}; only one of them may"
            )


def _check_level(where: str, part: Any, changed: Sequence[str]) -> None:
    if not isinstance(part, dict):
        raise SchemaError(f"{where}: expected a table, got {shown(part)}")
    for key, value in part.items():
        if key not in PARTS and isinstance(value, dict) and value.keys() <= set(PARTS):
            axis, _, level = where.removeprefix("grid.").rpartition(".")
            raise SchemaError(
                f"{where}.{key}: no part of a configuration; quote the name of a level that "
                f'contains a dot, as in [grid.{axis}."{level}.{key}"]'
            )
        if key not in PARTS or not isinstance(value, dict):
            raise SchemaError(
                f"{where}.{key}: a level holds parts of the tables {', '.join(PARTS)}, "
                f'such as fleet.suites.preset = "severe"; got {shown(value)}'
            )
    for key in changed:
        taken = any(own == key or own.startswith(f"{key}.") for own in _keys(part))
        if taken and f"{where}.{key}" not in changed:
            raise SchemaError(f"--set {key}: {where} sets it; change that: --set {where}.{key}=...")


def _check_known(axes: Any, path: Sequence[str]) -> None:
    """Refuses to set a key of a level that the file lacks: a typing error would add a level."""
    _check(axes, ())
    known = [dotted(["grid", axis, level]) for axis, levels in axes.items() for level in levels]
    level = dotted(path[:3])
    if level not in known:
        listed = f"there are {', '.join(known)}" if known else "there is no grid"
        raise SchemaError(
            f"--set {dotted(path)}: no level of the file{nearest(level, known)}; {listed}"
        )


def _keys(table: Table, where: str = "") -> Iterator[str]:
    """Yields the dotted keys of all values in a table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{where}{key}.")
        else:
            yield f"{where}{key}"
