"""Builds the JSON Schema of the configuration, a file of the package.

    python -m communis.run.schema        # `make schema`

Editors check TOML files by it. `communis settings` and the lists of methods, models and datasets
read it (`keys.py`), because that does not import torch.
"""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from communis.core.fields import Schema, table_schema
from communis.core.plugins import find, names
from communis.data.recordings.source import Recorded
from communis.fleet.device import PRESETS
from communis.models.zoo import PURPOSE, ZOO
from communis.run.config import Config
from communis.run.grid import PARTS
from communis.run.keys import FILE, NAMED

_OUTSIDE: Schema = {
    "type": "string",
    "pattern": ":",
    "description": "package.module:Class, with --trust",
}


def schema() -> Schema:
    """Returns the schema of the configuration; its definitions are the tables of all methods and
    datasets."""
    configuration = table_schema(Config)
    keys = configuration["properties"]
    definitions = {}
    for table, kind in NAMED.items():
        description = keys[table]["description"]
        keys[table] = {"description": description, **_by_name(table, kind)}
        for name in names(kind):
            definitions[f"{table}.{name}"] = _table_of(kind, name)
    keys["fleet"]["properties"]["models"]["items"] = {"oneOf": _models()}
    role = keys["fleet"]["properties"]["roles"]["items"]["properties"]
    role["device"]["anyOf"] = [*_devices(), {"type": role["device"].pop("type")}]
    keys["target"]["anyOf"] = [{"type": "number"}, _without(keys["target"])]
    keys["methods"] |= {
        "properties": {name: _settings(name) for name in names("methods")},
        "additionalProperties": {"type": "object"},  # for methods outside of communis
    }
    keys["variants"] |= {"additionalProperties": _by_name("method", "methods")}
    parts = {part: {"type": "object"} for part in PARTS}
    level = {"type": "object", "additionalProperties": False, "properties": parts}
    axis = {"type": "object", "additionalProperties": level}
    keys["grid"] |= {"additionalProperties": axis}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "a configuration of communis",
        **configuration,
        "definitions": definitions,
    }


def _without(key: Schema) -> Schema:
    """Removes the type from a key and returns it, so that it can be one of several."""
    return {name: key.pop(name) for name in ("type", "items")}


def _by_name(table: str, kind: str) -> Schema:
    """Returns a table whose other keys are those of the method or dataset that it names."""
    known = [{"const": name, **_entry(kind, name)} for name in names(kind)]
    return {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"anyOf": [*known, _OUTSIDE]}},
        "allOf": [
            {
                "if": {"properties": {"name": {"const": name}}},
                "then": {"$ref": f"#/definitions/{table}.{name}"},
            }
            for name in names(kind)
        ],
    }


def _entry(kind: str, name: str) -> Schema:
    """Returns the entry of a method or dataset in lists."""
    plugin = find(kind, name)
    if kind == "methods":
        return {"description": _line((plugin.__doc__ or "").split("\n\n")[0])}
    module = importlib.import_module(plugin.__module__)
    description = (module.__doc__ or "").partition(": ")[2].partition(".\n")[0]
    return {"description": _line(description), "x-recorded": issubclass(plugin, Recorded)}


def _table_of(kind: str, name: str) -> Schema:
    """Returns the table of a method or dataset, described by the docstring of its module."""
    plugin = find(kind, name)
    table = table_schema(plugin)
    module = importlib.import_module(plugin.__module__)
    table["description"] = (module.__doc__ or "").strip()
    table["properties"] = {"name": {"const": name}, **table["properties"]}
    if kind == "data":
        table["x-about"] = asdict(module.ABOUT)
    return table


def _settings(method: str) -> Schema:
    return {"$ref": f"#/definitions/method.{method}"}


def _models() -> list[Schema]:
    known = [
        {"const": name, "description": PURPOSE[name], "x-embedding": model.embedding_size}
        for name, model in ZOO.items()
    ]
    return [*known, _OUTSIDE]


def _devices() -> list[Schema]:
    return [
        {"const": name, "description": profile.source, "x-profile": asdict(profile)}
        for name, profile in PRESETS.items()
    ]


def _line(text: str) -> str:
    return " ".join(text.split())


def written() -> str:
    """Returns the content of the schema's file."""
    text = json.dumps(schema(), indent=1, ensure_ascii=False, allow_nan=False, default=_refuse)
    return text + "\n"


def _refuse(value: Any) -> None:
    raise TypeError(f"a default that JSON cannot hold: {value!r}")


def main() -> None:
    path = Path(str(FILE))
    path.write_text(written(), "utf-8")
    sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
