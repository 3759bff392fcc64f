"""Refuses values that a configuration cannot have before the training code is imported.

This is no second set of rules. The types of all keys come from the JSON Schema, which is built from
the settings classes (`schema.py`), and `core/settings.py` compares the values with them, as it does
later for `Config`. Where a settings class itself does not need torch, its own checks run too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, field, make_dataclass
from functools import cache, reduce
from operator import or_
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from communis.core import plugins
from communis.core.errors import CommunisError
from communis.core.reductions.settings import RobustConfig
from communis.core.settings import SchemaError, at, fitted, shown
from communis.exchange.privacy.settings import PrivacyConfig
from communis.exchange.topology.settings import TopologyConfig
from communis.fleet.availability.dropout import Dropout
from communis.fleet.availability.online import Online
from communis.fleet.availability.roles import Role
from communis.fleet.availability.suites import Suites
from communis.methods.parts.ranges import RANGES, refuse_out_of_range
from communis.run import grid, keys, reading
from communis.run.grid import Table
from communis.run.keys import Schema
from communis.run.plan import Plan

T = TypeVar("T")

SETTINGS: dict[str, type[Any]] = {  # classes of tables that can be imported without torch
    "fleet.roles": Role,
    "fleet.suites": Suites,
    "fleet.dropout": Dropout,
    "fleet.dropout_test": Dropout,
    "fleet.online": Online,
    "topology": TopologyConfig,
    "robust": RobustConfig,
    "privacy": PrivacyConfig,
    "run": Plan,
}
TYPES = {"integer": int, "number": float, "string": str, "boolean": bool}


def refuse(
    source: str,
    overrides: Sequence[str] = (),
    instead: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Refuses a file or preset with `key=value` overrides if a value cannot be right. instead:
    values that replace the file's own; overrides win over them."""
    table, changed, where = reading.read(source, overrides, instead)
    try:
        each_cell(grid.tables_by_cell(table, changed), check)
    except CommunisError as error:
        raise SchemaError(f"{where}: {error}") from None


def each_cell(tables: Mapping[str, Table], make: Callable[[Table], T]) -> dict[str, T]:
    """Returns what `make` returns for the table of every cell. A refusal names the cell, unless all
    cells are refused for the same reason."""
    made: dict[str, T] = {}
    refusals: dict[str, str] = {}
    for name, table in tables.items():
        target = table.get("target", ())
        targets = target if isinstance(target, list | tuple) else [target]
        try:
            made[name] = make({**table, "target": targets})
        except CommunisError as error:
            refusals[name] = str(error)
    everywhere = not made and len(set(refusals.values())) == 1
    for name, why in refusals.items():
        raise SchemaError(why if everywhere else f"cell {name}: {why}")
    return made


def check(table: Table) -> None:
    """Refuses the table of a single configuration if a value cannot be right."""
    known = keys.schema()["properties"]
    values = {key: about["default"] for key, about in known.items() if "default" in about}
    values |= {key: fitted(_types()[key], value, key) for key, value in table.items()}
    check_labels(values)
    variants = values["variants"]
    for name, settings in variants.items():
        _check_named("method", settings, f"variants.{name}")
    if "method" in values:
        _check_named("method", values["method"], "method", variants)
    if "data" in values:
        _check_named("data", values["data"], "data")
    if "fleet" in values:
        _refuse_unknown_models(values["fleet"].models or ())
    for name, settings in values["methods"].items():
        _check_named("method", {**settings, "name": name}, f"methods.{name}")
    for name in values["compare"]:
        refuse_unknown_method(name, variants)


def check_labels(table: Mapping[str, Any]) -> None:
    """Refuses names that a folder of the run cannot have, and numbers at the top of the file that
    are too low."""
    folders = {"name": table["name"]}
    if table["variant"]:
        folders["variant"] = table["variant"]
    folders |= {f"cell.{axis}": level for axis, level in table["cell"].items()}
    folders |= {f"variants.{name}": name for name in table["variants"]}
    for key, name in folders.items():
        if not usable_name(name):
            raise SchemaError(f"{key}: {shown(name)} cannot be the name of a folder")
    for key, lowest in {"seed": table["seed"], "target": min(table["target"], default=0)}.items():
        if lowest < 0:
            raise SchemaError(f"{key}: must be at least 0, got {lowest}")


def usable_name(name: str) -> bool:
    """Returns whether a folder can have this name on every system."""
    if name in ("", ".", ".."):
        return False
    return all(c.isprintable() and c not in '/\\:*?"<>|' for c in name)


def refuse_unknown_method(name: str, variants: Collection[str]) -> None:
    """Refuses what is neither a method nor a variant of the file. A method outside of communis
    (package.module:Class) is not looked for."""
    known = [*plugins.names("methods"), *variants]
    if ":" not in name and name not in known:
        hint = plugins.nearest(name, known)
        raise SchemaError(f"no method {name!r}{hint}; there are {', '.join(known)}")


def _refuse_unknown_models(names: Sequence[str]) -> None:
    """Refuses names of no architecture. A network of the user (package.module:Class) is not looked
    for."""
    known = list(keys.models())
    for name in names:
        if ":" not in name and name not in known:
            hint = plugins.nearest(name, known)
            raise SchemaError(
                f"[fleet] models: no architecture {name!r}{hint}; see {', '.join(known)}"
            )


def refuse_nameless(table: Table, where: str) -> None:
    """Refuses the table of a method or dataset that does not say which one."""
    if not isinstance(table.get("name"), str):
        raise SchemaError(f"missing key {where}.name")


def _check_named(
    kind: str, table: Table, where: str, variants: Mapping[str, Table] = MappingProxyType({})
) -> None:
    """Refuses settings that the named method or dataset cannot have. The name may be one of
    `variants`, which name their methods. Plug-ins outside of communis are not known here."""
    refuse_nameless(table, where)
    name = variants.get(table["name"], table).get("name", "")
    if ":" in name:
        return
    plugins.refuse_unknown(keys.NAMED[kind], name)
    settings = {key: value for key, value in table.items() if key != "name"}
    fitted(_settings_of(kind, name), settings, where)
    if kind == "method" and RANGES.keys() <= keys.definition(kind, name)["properties"].keys():
        try:
            refuse_out_of_range(settings)
        except CommunisError as error:
            raise SchemaError(f"[{where}] {error}") from None


@cache
def _types() -> dict[str, Any]:
    """Returns the types of the keys at the top of a file. A single target is a list by now."""
    types = {key: type_of(about, key) for key, about in keys.schema()["properties"].items()}
    return {**types, "target": tuple[float, ...]}


@cache
def _settings_of(kind: str, name: str) -> Any:
    """Returns the type of the table of a method or dataset, without its name."""
    table = keys.definition(kind, name)
    properties = {key: about for key, about in table["properties"].items() if key != "name"}
    return type_of({**table, "properties": properties}, "")


def type_of(key: Schema, where: str) -> Any:
    """Returns the type of the values that a schema allows: the reverse of `fields.type_schema`. A
    table becomes a dataclass, that in SETTINGS if there is one for the key `where`."""
    choices = key.get("oneOf") or key.get("anyOf")
    if choices and all("const" in choice for choice in choices):
        return Literal[tuple(choice["const"] for choice in choices)]
    if choices and "const" in choices[0]:  # names, and others of some form
        return reduce(or_, [type_of(choice, where) for choice in choices if "const" not in choice])
    if choices:
        return reduce(or_, [type_of(choice, where) for choice in choices])
    if "enum" in key:
        return Literal[tuple(key["enum"])]
    if key.get("type") == "array":
        if isinstance(key["items"], list):
            return tuple[tuple(type_of(item, where) for item in key["items"])]  # type: ignore[misc]
        return tuple[type_of(key["items"], where), ...]  # type: ignore[misc]
    if key.get("type") == "object":
        return _table_type(key, where)
    return TYPES.get(key.get("type", ""), Any)


def _table_type(key: Schema, where: str) -> Any:
    if where in SETTINGS:
        return SETTINGS[where]
    if key.get("additionalProperties") is not False:
        values = key.get("additionalProperties", {})
        return dict[str, type_of(values, where)]  # type: ignore[misc]
    required = key.get("required", ())
    members = []
    for name, about in key["properties"].items():
        default = MISSING if name in required else None
        members.append((name, type_of(about, at(where, name)), field(default=default)))
    return make_dataclass("Table", members, kw_only=True, repr=False, eq=False)
