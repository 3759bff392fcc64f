"""Grid: a table with `[grid.AXIS.LEVEL]` tables -> one table per cell, a level of every axis.

    [grid.H.severe]
    fleet.suites.preset = "severe"
    [grid.I.moderate]
    fleet.dropout.preset = "pamap2-moderate"

A level is a part of a configuration, merged deeply into the file's own tables.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any

from communis.schema import SchemaError

Table = dict[str, Any]
PARTS = ("data", "partition", "fleet", "method", "methods", "topology", "run")  # of every level


def cells(table: Table, overrides: Sequence[str] = ()) -> dict[str, Table]:
    """The table of every cell by its levels, such as "severe/moderate", in the order of the file;
    without a grid the table itself, called "". Overrides change the file, and no level undoes
    them."""
    changed = [override(table, text) for text in overrides]
    base = {key: value for key, value in table.items() if key != "grid"}
    axes = table.get("grid", {})
    if axes == {}:
        return {"": base}
    if "cell" in base:
        raise SchemaError("cell: says of which cell a run was; a file with a grid has none")
    _check(axes, changed)
    found = {}
    for levels in product(*axes.values()):
        cell = dict(zip(axes, levels, strict=True))
        made = {**base, "cell": cell}
        for axis, level in cell.items():
            made = merged(made, axes[axis][level])
        found["/".join(levels)] = made
    return found


def override(table: Table, text: str) -> str:
    """Sets what `key=value` says; the key."""
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals or not key:
        raise SchemaError(f"--set {text}: expected key=value, such as method.lr=0.1")
    *parents, last = key.split(".")
    for parent in parents:
        table = table.setdefault(parent, {})
        if not isinstance(table, dict):
            raise SchemaError(f"--set {text}: {parent} is not a table")
    try:
        table[last] = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        table[last] = value  # a word without quotes
    return key


def merged(table: Table, part: Table) -> Table:
    """`table` with the values of `part`; tables are merged in turn, other values replaced."""
    both = {
        key: merged(table[key], value)
        for key, value in part.items()
        if isinstance(value, dict) and isinstance(table.get(key), dict)
    }
    return {**table, **part, **both}


def _check(axes: Any, changed: Sequence[str]) -> None:
    if not isinstance(axes, dict):
        raise SchemaError(f"grid: expected tables such as [grid.H.severe], got {axes!r}")
    for axis, levels in axes.items():
        if not isinstance(levels, dict) or not levels:
            raise SchemaError(
                f"grid.{axis}: expected tables such as [grid.{axis}.severe], got {levels!r}"
            )
        for level, part in levels.items():
            _check_level(f"grid.{axis}.{level}", part, changed)
    keys = {axis: {k for part in axes[axis].values() for k in _keys(part)} for axis in axes}
    for one, other in combinations(axes, 2):
        if both := keys[one] & keys[other]:
            raise SchemaError(f"grid: axes {one} and {other} both set {min(both)}; one of them can")


def _check_level(where: str, part: Any, changed: Sequence[str]) -> None:
    if not isinstance(part, dict):
        raise SchemaError(f"{where}: expected a table, got {part!r}")
    for key, value in part.items():
        if key not in PARTS or not isinstance(value, dict):
            raise SchemaError(
                f"{where}.{key}: a level holds parts of the tables {', '.join(PARTS)}, "
                f'such as fleet.suites.preset = "severe"; got {value!r}'
            )
    for key in changed:
        if any(own == key or own.startswith(f"{key}.") for own in _keys(part)):
            raise SchemaError(f"--set {key}: {where} sets it; change that: --set {where}.{key}=...")


def _keys(table: Table, where: str = "") -> Iterator[str]:
    """The dotted keys of all values in a table."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _keys(value, f"{where}{key}.")
        else:
            yield f"{where}{key}"
