"""The keys of a configuration with their meanings, defaults and allowed values, read from the JSON
Schema that `schema.py` builds. Nothing here imports torch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import tomli_w

from communis.core.plugins import nearest
from communis.core.settings import SchemaError, at

Schema = Mapping[str, Any]
FILE = resources.files("communis.run") / "configuration.schema.json"
NAMED = {"data": "data", "method": "methods"}  # tables whose keys depend on their name -> plug-ins
# Keys at the top that a run writes into its folder, and that no file of a user has.
OF_RUNS = ("cell", "levels", "variant")
WORDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true, false",
    "object": "table",
}


@cache
def schema() -> Schema:
    """Returns the JSON Schema of the configuration."""
    parsed: Schema = json.loads(FILE.read_text(encoding="utf-8"))
    return parsed


def entries(table: str) -> dict[str, Schema]:
    """Returns the methods (table "method") or datasets ("data") with their descriptions."""
    choices: list[Schema] = schema()["properties"][table]["properties"]["name"]["anyOf"]
    return {choice["const"]: choice for choice in choices if "const" in choice}


def devices() -> dict[str, Schema]:
    """Returns the built-in device profiles by name."""
    role = schema()["properties"]["fleet"]["properties"]["roles"]["items"]["properties"]
    choices = role["device"]["anyOf"]
    return {choice["const"]: choice["x-profile"] for choice in choices if "const" in choice}


def models() -> dict[str, Schema]:
    """Returns the built-in architectures by name."""
    choices = schema()["properties"]["fleet"]["properties"]["models"]["items"]["oneOf"]
    return {choice["const"]: choice for choice in choices if "const" in choice}


def definition(table: str, name: str) -> Schema:
    """Returns the table of a method or dataset."""
    table_schema: Schema = schema()["definitions"][f"{table}.{name}"]
    return table_schema


def settings(table: Schema) -> dict[str, Schema]:
    """Returns the keys of a table, without inner tables and without its name."""
    return {
        key: value
        for key, value in table["properties"].items()
        if "properties" not in inner(value) and "const" not in value
    }


def top() -> Schema:
    """Returns the table of the keys at the top of a file."""
    properties = schema()["properties"]
    return {"properties": {key: value for key, value in properties.items() if key not in OF_RUNS}}


def inner_tables(table: Schema, where: str = "") -> Iterator[tuple[str, Schema]]:
    """Yields the tables within a table with their dotted keys, the outer ones first."""
    for key, value in table["properties"].items():
        if "properties" in inner(value) and "allOf" not in value and key != "methods":
            yield at(where, key), value
            yield from inner_tables(inner(value), at(where, key))


def inner(key: Schema) -> Schema:
    """Returns the schema of a table; for a list of tables, that of its items."""
    items = key.get("items")
    return items if isinstance(items, Mapping) and "properties" in items else key


def values(key: Schema) -> str:
    """Returns the allowed values of a key in words."""
    if "enum" in key:
        return ", ".join(toml(value) for value in key["enum"])
    if "anyOf" in key:
        return " or ".join(values(choice) for choice in key["anyOf"] if "const" not in choice)
    if key.get("type") == "array":
        return f"list of {key['maxItems']}" if "maxItems" in key else "list"
    return WORDS.get(key.get("type", ""), "any value")


def default(key: Schema) -> str:
    """Returns the default of a key in TOML; empty if it has none."""
    return toml(key["default"]) if "default" in key else ""


def toml(value: Any) -> str:
    """Returns a value in TOML, on one line."""
    text = " ".join(tomli_w.dumps({"x": value}).partition("= ")[2].split())
    return text.replace("[ ", "[").replace(", ]", "]")


@cache
def paths() -> dict[str, list[str]]:
    """Returns the full keys of a configuration, and its inner tables, by their last word: rounds ->
    run.rounds, dropout -> fleet.dropout."""
    full_keys = {key: [key] for key in top()["properties"]}
    for where, table in inner_tables(schema()):
        if "." in where:
            full_keys.setdefault(where.rpartition(".")[2], []).append(where)
        if "items" not in table:
            for key in settings(table):
                full_keys.setdefault(key, []).append(at(where, key))
    for table_name in ("method", "data"):
        for name in entries(table_name):
            for key in settings(definition(table_name, name)):
                same = full_keys.setdefault(key, [])
                if at(table_name, key) not in same:
                    same.append(at(table_name, key))
    return full_keys


def elsewhere(key: str) -> str:
    """Returns a hint at the full keys whose last word is this one or a similar one."""
    name = key if key in paths() else nearest(key, list(paths()), str)
    return f" (did you mean {' or '.join(map(repr, paths()[name]))}?)" if name else ""


def refuse_unknown(table: Mapping[str, Any]) -> None:
    """Refuses keys that no configuration has, without importing the code that uses them."""
    _refuse_unknown(table, schema(), "")


def _refuse_unknown(table: Mapping[str, Any], known: Schema, where: str) -> None:
    keys = known.get("properties", {})
    closed = known.get("additionalProperties") is False
    for key, value in table.items():
        if closed and key not in keys:
            near = nearest(key, list(keys)) if where and key not in paths() else ""
            hint = near or elsewhere(key)
            listed = keys if where else top()["properties"]
            raise SchemaError(f"unknown key {at(where, key)}{hint}; there are {', '.join(listed)}")
        if isinstance(value, Mapping):
            _refuse_unknown(value, _followed(keys.get(key, {}), value), at(where, key))


def _followed(key: Schema, table: Mapping[str, Any]) -> Schema:
    """Returns the schema of the table at a key; for a method or dataset, that of the one named."""
    if "$ref" in key:
        target: Schema = schema()["definitions"][key["$ref"].rpartition("/")[2]]
        return target
    for choice in key.get("allOf", ()):
        if choice["if"]["properties"]["name"]["const"] == table.get("name"):
            return _followed(choice["then"], table)
    return {} if "allOf" in key else key
