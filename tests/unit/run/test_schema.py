"""The JSON Schema that comes with the package."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import pytest

from communis.core.plugins import names
from communis.core.settings import SchemaError
from communis.run import keys, presets
from communis.run.config import load
from communis.run.schema import written

KINDS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def fits(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value is what this part of the schema says."""
    if "$ref" in schema:
        return fits(value, keys.schema()["definitions"][schema["$ref"].rpartition("/")[2]])
    if "const" in schema and value != schema["const"]:
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "anyOf" in schema and not any(fits(value, one) for one in schema["anyOf"]):
        return False
    if "oneOf" in schema and sum(fits(value, one) for one in schema["oneOf"]) != 1:
        return False
    if "pattern" in schema and not re.search(schema["pattern"], value):
        return False
    kinds = KINDS.get(schema.get("type", ""), (object,))
    if not isinstance(value, kinds) or (isinstance(value, bool) and int in kinds):
        return False
    if isinstance(value, list) and isinstance(schema.get("items"), Mapping):
        return all(fits(one, schema["items"]) for one in value)
    return not isinstance(value, dict) or fits_table(value, schema)


def fits_table(table: Mapping[str, Any], schema: Mapping[str, Any]) -> bool:
    known = schema.get("properties", {})
    others = schema.get("additionalProperties", True)
    for choice in schema.get("allOf", ()):
        if table.get("name") == choice["if"]["properties"]["name"]["const"]:
            return fits(table, choice["then"])
    for key, value in table.items():
        if key in known and not fits(value, known[key]):
            return False
        if key not in known and others is False:
            return False
        if key not in known and isinstance(others, Mapping) and not fits(value, others):
            return False
    return all(key in table for key in schema.get("required", ()))


def test_the_file_is_current() -> None:
    assert keys.FILE.read_text(encoding="utf-8") == written(), "run `make schema`"


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_fits(name: str) -> None:
    assert fits(tomllib.loads(presets.text(name)), keys.schema())


@pytest.mark.parametrize("name", ["synthetic", "watch"])
def test_what_a_run_writes_fits(name: str) -> None:
    assert fits(tomllib.loads(load(name).to_toml()), keys.schema())


@pytest.mark.parametrize(
    "text",
    [
        "rounds = 3",
        "run.rounds = '3'",
        "run.rouns = 3",
        "select = 'best'",
        "fleet.models = ['cmm']",
        "method = { name = 'fedavg', mu = 1 }",
        "method = { lr = 0.1 }",
        "data = { name = 'nosuch' }",
        "fleet.roles = [{ modalities = [1] }]",
        "methods.fedprox.muu = 1",
        "variants.v = { name = 'fedavg', muu = 1 }",
        "grid.H.a.flet.x = 1",
    ],
)
def test_what_is_wrong_does_not_fit(text: str) -> None:
    assert not fits(tomllib.loads(text), keys.schema())


def test_every_method_and_dataset_is_described() -> None:
    for table, room in (("method", "methods"), ("data", "data")):
        entries = keys.entries(table)
        assert list(entries) == names(room)
        assert all(one["description"] for one in entries.values())
        assert all(keys.definition(table, name)["description"] for name in entries)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"rounds": 1}, r"unknown key rounds \(did you mean 'run.rounds'\?\)"),
        ({"lr": 1}, r"unknown key lr \(did you mean 'method.lr'\?\)"),
        ({"rouns": 1}, r"unknown key rouns \(did you mean 'run.rounds'\?\)"),
        ({"dropout": {"kind": "markov"}}, r"key dropout \(did you mean 'fleet.dropout'\?\)"),
        ({"role": []}, r"unknown key role \(did you mean 'fleet.roles'\?\)"),
        ({"method": {"name": "fedavg", "rounds": 1}}, r"method.rounds \(did you mean 'run.rounds'"),
        ({"run": {"rouns": 1}}, r"unknown key run.rouns \(did you mean 'rounds'\?\); there are"),
        ({"methods": {"fedprox": {"muu": 1}}}, r"methods.fedprox.muu \(did you mean 'mu'\?\)"),
        ({"zzzz": 1}, "unknown key zzzz; there are name, seed"),
    ],
)
def test_hints_reach_nested_keys(table: dict[str, Any], message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        keys.refuse_unknown(table)


def test_keys_of_third_party_plug_ins_are_not_judged() -> None:
    keys.refuse_unknown({"method": {"name": "my.lab:Mine", "anything": 1}})
