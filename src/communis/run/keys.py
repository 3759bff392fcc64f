"""The keys of a configuration, read from the JSON Schema that `schema.py` built: what they mean,
what they may be, and whether a table has others. Nothing here imports torch."""

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
WORDS = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true, false",
    "object": "table",
}


@cache
def schema() -> Schema:
    found: Schema = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def entries(table: str) -> dict[str, Schema]:
    """The methods (table "method") or datasets ("data"), each with what lists say of it."""
    return {one["const"]: one for one in _named(table) if "const" in one}


def devices() -> dict[str, Schema]:
    """The device profiles that come along."""
    roles = schema()["properties"]["fleet"]["properties"]["roles"]["items"]["properties"]
    return {one["const"]: one["x-profile"] for one in roles["device"]["anyOf"] if "const" in one}


def _named(table: str) -> list[Schema]:
    found: list[Schema] = schema()["properties"][table]["properties"]["name"]["anyOf"]
    return found


def models() -> dict[str, Schema]:
    listed = schema()["properties"]["fleet"]["properties"]["models"]["items"]["oneOf"]
    return {one["const"]: one for one in listed}


def definition(table: str, name: str) -> Schema:
    """The settings of a method or dataset."""
    found: Schema = schema()["definitions"][f"{table}.{name}"]
    return found


def settings(table: Schema) -> dict[str, Schema]:
    """The keys of a table that are no tables themselves, nor the name that chose it."""
    return {
        key: one
        for key, one in table["properties"].items()
        if "properties" not in inner(one) and "const" not in one
    }


def tables(table: Schema, where: str = "") -> Iterator[tuple[str, Schema]]:
    """The tables within a table, with their dotted keys, from the outside in."""
    for key, one in table["properties"].items():
        if "properties" in inner(one) and "allOf" not in one and key != "methods":
            yield at(where, key), one
            yield from tables(inner(one), at(where, key))


def inner(key: Schema) -> Schema:
    """The table itself, or the one that a list of tables is made of."""
    items = key.get("items")
    return items if isinstance(items, Mapping) and "properties" in items else key


def values(key: Schema) -> str:
    """What a key may be, in words."""
    if "enum" in key:
        return ", ".join(toml(value) for value in key["enum"])
    if "anyOf" in key:
        return " or ".join(values(one) for one in key["anyOf"] if "const" not in one)
    if key.get("type") == "array":
        return f"list of {key['maxItems']}" if "maxItems" in key else "list"
    return WORDS.get(key.get("type", ""), "any value")


def default(key: Schema) -> str:
    """The default as TOML writes it; empty if there is none."""
    return toml(key["default"]) if "default" in key else ""


def toml(value: Any) -> str:
    text = " ".join(tomli_w.dumps({"x": value}).partition("= ")[2].split())
    return text.replace("[ ", "[").replace(", ]", "]")


@cache
def paths() -> dict[str, list[str]]:
    """Where in a configuration a key can stand, by its last word: rounds -> run.rounds."""
    found = {key: [key] for key in schema()["properties"]}
    for where, table in tables(schema()):
        if "items" not in table:
            for key in settings(table):
                found.setdefault(key, []).append(at(where, key))
    for chosen in ("method", "data"):
        for name in entries(chosen):
            for key in settings(definition(chosen, name)):
                if at(chosen, key) not in found.setdefault(key, []):
                    found[key].append(at(chosen, key))
    return found


def elsewhere(key: str) -> str:
    """A hint at the places where a key of this name, or of nearly this name, can stand."""
    name = key if key in paths() else nearest(key, list(paths()), str)
    return f" (did you mean {' or '.join(map(repr, paths()[name]))}?)" if name else ""


def refuse_unknown(table: Mapping[str, Any]) -> None:
    """Refuses keys that no configuration has, before anything is imported that would read it."""
    _refuse_unknown(table, schema(), "")


def _refuse_unknown(table: Mapping[str, Any], known: Schema, where: str) -> None:
    keys = known.get("properties", {})
    closed = known.get("additionalProperties") is False
    for key, value in table.items():
        if closed and key not in keys:
            near = nearest(key, list(keys)) if where and key not in paths() else ""
            hint = near or elsewhere(key)
            raise SchemaError(f"unknown key {at(where, key)}{hint}; there are {', '.join(keys)}")
        if isinstance(value, Mapping):
            _refuse_unknown(value, _followed(keys.get(key, {}), value), at(where, key))


def _followed(key: Schema, table: Mapping[str, Any]) -> Schema:
    """The table behind a key: of a method or dataset, the one that its name chooses."""
    if "$ref" in key:
        found: Schema = schema()["definitions"][key["$ref"].rpartition("/")[2]]
        return found
    for choice in key.get("allOf", ()):
        if choice["if"]["properties"]["name"]["const"] == table.get("name"):
            return _followed(choice["then"], table)
    return {} if "allOf" in key else key
