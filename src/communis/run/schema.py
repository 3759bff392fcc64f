"""Builds the JSON Schema of the configuration, which comes with the package.

    python -m communis.run.schema        # `make schema`

Editors check TOML files by it, and `communis settings` and the lists of methods, models and
datasets are read from it (`keys.py`), as that takes no torch.
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
from communis.run.keys import FILE

NAMED = {"data": "data", "method": "methods"}  # tables whose keys depend on their name, and rooms


def schema() -> Schema:
    """The whole configuration: definitions hold the table of every method and dataset."""
    found = table_schema(Config)
    keys = found["properties"]
    definitions = {}
    for table, room in NAMED.items():
        about = keys[table]["description"]
        keys[table] = {"description": about, **_by_name(table, room)}
        for name in names(room):
            definitions[f"{table}.{name}"] = _table_of(room, name)
    keys["fleet"]["properties"]["models"]["items"] = {"oneOf": _models()}
    role = keys["fleet"]["properties"]["roles"]["items"]["properties"]
    role["device"]["anyOf"] = [*_devices(), {"type": role["device"].pop("type")}]
    keys["target"]["anyOf"] = [{"type": "number"}, _without(keys["target"])]
    keys["methods"] |= {
        "properties": {n: _settings(n) for n in names("methods")},
        "additionalProperties": {"type": "object"},  # of a third-party method
    }
    keys["variants"] |= {"additionalProperties": _by_name("method", "methods")}
    parts = {part: {"type": "object"} for part in PARTS}
    level = {"type": "object", "additionalProperties": False, "properties": parts}
    axis = {"type": "object", "additionalProperties": level}
    keys["grid"] |= {"additionalProperties": axis}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "a configuration of communis",
        **found,
        "definitions": definitions,
    }


def _without(key: Schema) -> Schema:
    """Takes the type out of a key, to be one of several."""
    return {name: key.pop(name) for name in ("type", "items")}


def _by_name(table: str, room: str) -> Schema:
    """A table whose other keys are those of the method or dataset that it names."""
    known = [{"const": name, **_entry(room, name)} for name in names(room)]
    outside = {
        "type": "string",
        "pattern": ":",
        "description": "package.module:Class, with --trust",
    }
    return {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"anyOf": [*known, outside]}},
        "allOf": [
            {
                "if": {"properties": {"name": {"const": name}}},
                "then": {"$ref": f"#/definitions/{table}.{name}"},
            }
            for name in names(room)
        ],
    }


def _entry(room: str, name: str) -> Schema:
    """What lists say of a method or dataset."""
    kind = find(room, name)
    if room == "methods":
        return {"description": _line((kind.__doc__ or "").split("\n\n")[0])}
    module = importlib.import_module(kind.__module__)
    what = (module.__doc__ or "").partition(": ")[2].partition(".\n")[0]
    return {"description": _line(what), "x-recorded": issubclass(kind, Recorded)}


def _table_of(room: str, name: str) -> Schema:
    """The settings of a method or dataset, with its name among the keys, and all that its module
    says of it."""
    kind = find(room, name)
    found = table_schema(kind)
    module = importlib.import_module(kind.__module__)
    found["description"] = (module.__doc__ or "").strip()
    found["properties"] = {"name": {"const": name}, **found["properties"]}
    if room == "data":
        found["x-about"] = asdict(module.ABOUT)
    return found


def _settings(method: str) -> Schema:
    return {"$ref": f"#/definitions/method.{method}"}


def _models() -> list[Schema]:
    return [
        {"const": name, "description": PURPOSE[name], "x-embedding": kind.embedding_size}
        for name, kind in ZOO.items()
    ]


def _devices() -> list[Schema]:
    return [
        {"const": name, "description": profile.source, "x-profile": asdict(profile)}
        for name, profile in PRESETS.items()
    ]


def _line(text: str) -> str:
    return " ".join(text.split())


def written() -> str:
    """The file as it should be."""
    return (
        json.dumps(schema(), indent=1, ensure_ascii=False, allow_nan=False, default=_refuse) + "\n"
    )


def _refuse(value: Any) -> None:
    raise TypeError(f"a default that JSON cannot hold: {value!r}")


def main() -> None:
    path = Path(str(FILE))
    path.write_text(written(), "utf-8")
    sys.stdout.write(f"wrote {path}\n")


if __name__ == "__main__":
    main()
