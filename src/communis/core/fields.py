"""The fields of a settings dataclass: their meanings, from the comments beside them, and the JSON
Schema of the table.

    rate: float = 0.1  # a comment behind a field
    # goes on below it
    # A comment above a field that has none behind it.
    share: float = (
        0.5  # the formatter puts long ones inside
    )
"""

from __future__ import annotations

import ast
import inspect
import io
import textwrap
import tokenize
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from communis.core.settings import plain

Schema = dict[str, Any]
TYPES = {int: "integer", float: "number", str: "string", bool: "boolean"}


def table_schema(kind: type[Any]) -> Schema:
    """Returns the JSON Schema of the table from which a dataclass is made."""
    meaning_of = meanings(kind)
    hints = get_type_hints(kind)
    keys = {f.name: _key(f, hints[f.name], meaning_of.get(f.name, "")) for f in fields(kind)}
    schema: Schema = {"type": "object", "additionalProperties": False, "properties": keys}
    required = [f.name for f in fields(kind) if not _optional(f)]
    if required:
        schema["required"] = required
    return schema


def _optional(f: Field[Any]) -> bool:
    return f.default is not MISSING or f.default_factory is not MISSING


def _key(f: Field[Any], hint: Any, meaning: str) -> Schema:
    schema: Schema = {"description": meaning} if meaning else {}
    schema |= type_schema(hint)
    default = f.default
    if f.default_factory is not MISSING:
        default = f.default_factory()
    if not (default is MISSING or default is None or is_dataclass(default)):
        schema["default"] = plain(default)
    return schema


def type_schema(hint: Any) -> Schema:
    """Returns the JSON Schema of the values that a type allows."""
    origin = get_origin(hint)
    arguments = [a for a in get_args(hint) if a is not NoneType]
    if origin is Literal:
        return {"enum": arguments}
    if origin in (Union, UnionType):
        kinds = [type_schema(a) for a in arguments]
        return kinds[0] if len(kinds) == 1 else {"anyOf": kinds}
    if origin is tuple and arguments[-1] is not Ellipsis:
        each = [type_schema(a) for a in arguments]
        return {"type": "array", "items": each, "minItems": len(each), "maxItems": len(each)}
    if origin is tuple:
        return {"type": "array", "items": type_schema(arguments[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": type_schema(arguments[1])}
    if is_dataclass(hint) and isinstance(hint, type):
        return table_schema(hint)
    return {"type": TYPES[hint]} if hint in TYPES else {}


def meanings(kind: type[Any]) -> dict[str, str]:
    """Returns the comment of each field of a dataclass and of its base classes."""
    comments: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if is_dataclass(base):
            comments |= commented(textwrap.dedent(inspect.getsource(base)))
    return comments


def commented(source: str) -> dict[str, str]:
    """Returns the comments of the fields in the source of one class. Comment lines between two
    fields continue the comment behind the first one, if it has one; otherwise they belong to the
    second."""
    (body,) = (n.body for n in ast.parse(source).body if isinstance(n, ast.ClassDef))
    comments = _comments(source)
    lines = source.splitlines()
    alone = {n: text for n, text in comments.items() if lines[n - 1].lstrip().startswith("#")}
    found: dict[str, str] = {}
    before = ""  # the name of the field before
    last = 0  # its last line
    for node in body:
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        start = node.lineno
        end = node.end_lineno or start
        behind = _joined(comments, range(start, end + 1))
        between = _joined(alone, range(_start_of_block(alone, start, last), start))
        if behind and found.get(before):
            found[before] = f"{found[before]} {between}".strip()
            between = ""
        before = node.target.id
        last = end
        found[before] = f"{between} {behind}".strip()
    if found.get(before):
        after = _joined(alone, range(last + 1, _end_of_block(alone, last + 1)))
        found[before] = f"{found[before]} {after}".strip()
    return {name: text for name, text in found.items() if text}


def _comments(source: str) -> dict[int, str]:
    """Returns the comments by line."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
    # Marks for tools, such as the formatter, are no part of the meaning.
    bare = {n: text.partition("  # fmt:")[0] for n, text in found.items()}
    return {n: text for n, text in bare.items() if not text.startswith(("noqa", "type:", "fmt:"))}


def _joined(comments: Mapping[int, str], lines: range) -> str:
    return " ".join(comments[line] for line in lines if line in comments)


def _start_of_block(alone: Mapping[int, str], line: int, last: int) -> int:
    """Returns the first line of the comment block that ends directly above a line and begins below
    the line `last`."""
    while line - 1 > last and line - 1 in alone:
        line -= 1
    return line


def _end_of_block(alone: Mapping[int, str], line: int) -> int:
    while line in alone:
        line += 1
    return line
