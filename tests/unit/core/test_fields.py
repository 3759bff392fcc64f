"""What settings say of themselves: comments, and JSON Schema."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from communis.core.fields import commented, meanings, table_schema, type_schema
from communis.core.plugins import find, names
from communis.methods.fedper import FedPer
from communis.methods.fedproto import FedProto

SOURCE = '''
@dataclass(frozen=True)
class Settings:
    """A # in text is no comment."""

    plain: int = 0  # behind
    whole: int = 0  # behind, and
    # below
    inner: bool = (
        False  # inside,
    )
    # and below
    other: int = 0  # one of its own
    # above
    bare: int = 0
    silent: str = "# no comment"
    # above, first line
    # above, second line
    both: int = 0  # and behind
    marked: int = 0  # noqa: E501
    last: int = 0  # the last,
    # and its end

    def method(self) -> None:  # not a field
        local: int = 0  # nor this
'''


def test_comments_are_read_whole_wherever_they_stand() -> None:
    assert commented(SOURCE) == {
        "plain": "behind",
        "whole": "behind, and below",
        "inner": "inside, and below",
        "other": "one of its own",
        "bare": "above",
        "both": "above, first line above, second line and behind",
        "last": "the last, and its end",
    }


def test_inherited_fields_keep_their_meaning() -> None:
    found = meanings(FedPer)
    assert found["lr"] == "learning rate of the local optimiser, above 0"
    assert found["personal"].startswith("prefixes of the paths")
    assert "instead of weighting them by samples" in found["uniform"]
    assert meanings(FedProto)["inference"] != ""


@dataclass(frozen=True)
class Inner:
    rate: float  # per second


@dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"] = "a"  # which
    inner: Inner = field(default_factory=lambda: Inner(1.0))
    many: tuple[Inner, ...] = ()
    pair: tuple[int, float] = (1, 2.0)


def test_a_table_as_schema() -> None:
    inner = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"rate": {"description": "per second", "type": "number"}},
        "required": ["rate"],
    }
    found = table_schema(Outer)
    assert "required" not in found
    assert found["properties"] == {
        "kind": {"description": "which", "enum": ["a", "b"], "default": "a"},
        "inner": inner,
        "many": {"type": "array", "items": inner, "default": []},
        "pair": {
            "type": "array",
            "items": [{"type": "integer"}, {"type": "number"}],
            "minItems": 2,
            "maxItems": 2,
            "default": [1, 2.0],
        },
    }


@pytest.mark.parametrize(
    ("hint", "expected"),
    [
        (bool, {"type": "boolean"}),
        (str | None, {"type": "string"}),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (Any, {}),
    ],
)
def test_types_as_schema(hint: Any, expected: dict[str, Any]) -> None:
    assert type_schema(hint) == expected


@pytest.mark.parametrize("name", names("methods"))
def test_every_setting_of_a_method_has_a_default(name: str) -> None:
    assert "required" not in table_schema(find("methods", name))
    assert dataclasses.is_dataclass(find("methods", name)())
