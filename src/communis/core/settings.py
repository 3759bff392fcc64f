"""The schema of settings: a TOML table -> a frozen dataclass, with every key and value checked; and
back."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from communis.core.errors import CommunisError, readable
from communis.core.plugins import nearest

LARGEST = 2**63  # whole numbers must be smaller, as in TOML
BIGGEST = 3.4e38  # other numbers must be smaller, as in float32
LONGEST = 4096  # largest number of characters of a text
DEEPEST = 12  # largest depth of nested tables and lists
LONGEST_REFUSAL = 1500  # characters
NAMES: dict[Any, str] = {
    float: "a finite number",
    int: "a whole number",
    str: "text",
    bool: "true or false",
    tuple: "a list",
}
BIDIRECTIONAL = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # reverse text


class SchemaError(CommunisError):
    """The refusal of a key or value. The text names the key; it is one printable line, whatever it
    quotes."""

    def __init__(self, text: str) -> None:
        super().__init__(readable(text, LONGEST_REFUSAL))


def refuse_strange(table: Mapping[str, Any]) -> None:
    """Refuses what no setting can be, before the keys are checked: values that are too large, and
    text with control characters."""
    refuse_endless(table)
    for key, value, _ in _everything(table):
        if isinstance(value, str) and _has_control_characters(value):
            raise SchemaError(f"{key}: a control character in {shown(value)}")


def refuse_line_breaks(table: Mapping[str, Any]) -> None:
    """Refuses text of several lines, in a file from elsewhere whose names are shown in tables: a
    second line would look like one of the program's own."""
    for key, value, _ in _everything(table):
        if isinstance(value, str) and "\n" in value:
            raise SchemaError(f"{key}: a line break in {shown(value)}")


def refuse_endless(table: Mapping[str, Any]) -> None:
    """Refuses whole numbers over 64 bits, long text and deep tables."""
    for key, value, depth in _everything(table):
        if depth > DEEPEST:
            raise SchemaError(f"{key}: tables and lists are nested over {DEEPEST} deep")
        if isinstance(value, int) and not -LARGEST <= value < LARGEST:
            raise SchemaError(f"{key}: a whole number of over 64 bits")
        if isinstance(value, str) and len(value) > LONGEST:
            raise SchemaError(
                f"{key}: {len(value)} characters, at most {LONGEST} are allowed, in {shown(value)}"
            )


def _everything(table: Mapping[str, Any]) -> Iterator[tuple[str, Any, int]]:
    """Yields all values and all names of keys, each with its full key and its depth. It does not
    recurse, because the table may be deeper than Python's recursion limit."""
    left: list[tuple[str, Any, int]] = [("", table, 0)]
    while left:
        key, value, depth = left.pop()
        yield key, value, depth
        if depth > DEEPEST:
            continue
        if isinstance(value, Mapping):
            for name, inner in value.items():
                yield at(key, name), name, depth
                left.append((at(key, name), inner, depth + 1))
        elif isinstance(value, list | tuple):
            left += [(f"{key}[{i}]", inner, depth + 1) for i, inner in enumerate(value)]


def _has_control_characters(text: str) -> bool:
    return any(unicodedata.category(c) in ("Cc", "Cs") or c in BIDIRECTIONAL for c in text)


def shown(value: Any) -> str:
    """Returns a value as refusals quote it."""
    try:
        return readable(repr(value), 80)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return "a value too large to show"


def build(kind: Any, table: Mapping[str, Any], where: str) -> Any:
    """Returns the dataclass `kind` made from a table. where: the key of the table; empty for the
    whole file."""
    hints = get_type_hints(kind)
    known = {f.name: f for f in fields(kind)}
    for key in table:
        if key not in known:
            hint = nearest(key, list(known))
            raise SchemaError(f"unknown key {at(where, key)}{hint}; there are {', '.join(known)}")
    missing = [
        at(where, name)
        for name, f in known.items()
        if name not in table and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise SchemaError(f"missing key {', '.join(missing)}")
    values = {key: fitted(hints[key], value, at(where, key)) for key, value in table.items()}
    try:
        return kind(**values)
    except SchemaError:
        raise
    except (CommunisError, ValueError) as error:
        raise SchemaError(f"[{where}] {error}" if where else str(error)) from None


def at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def fitted(hint: Any, value: Any, where: str) -> Any:
    """Returns the value in the declared type. An error says what was expected."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal and value in arguments:
        return value
    if origin in (Union, UnionType):  # the value's own type, or the first that may hold it
        same = [a for a in arguments if _is_of(a, value)]
        if same:
            return fitted(same[0], value, where)
    if is_dataclass(hint) and _is_table(value):
        return build(hint, value, where)
    if origin is tuple and isinstance(value, list | tuple):
        if arguments[-1] is Ellipsis:
            return tuple(fitted(arguments[0], v, f"{where}[{i}]") for i, v in enumerate(value))
        if len(value) == len(arguments):
            return tuple(fitted(a, v, where) for a, v in zip(arguments, value, strict=True))
    if origin is dict and _is_table(value):
        return {key: fitted(arguments[1], v, at(where, key)) for key, v in value.items()}
    if hint is float and type(value) in (int, float) and -BIGGEST < value < BIGGEST:
        return float(value)
    if hint is int and type(value) is int and -LARGEST <= value < LARGEST:
        return value
    if hint is type(None) and value is None:
        return None
    if hint is Any or (hint in (str, bool) and type(value) is hint):
        return value
    raise SchemaError(f"{where}: {_expectation(hint, value)}")


def _is_of(hint: Any, value: Any) -> bool:
    """Whether a value of a union is meant as this one of its types. A whole number is also a
    float, if the union has no type for whole numbers."""
    if is_dataclass(hint):
        return _is_table(value)
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple)
    return type(value) is hint or (hint is float and type(value) is int)


def _expectation(hint: Any, value: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        listed = ", ".join(repr(a) for a in arguments)
        close = nearest(value, [str(a) for a in arguments]) if isinstance(value, str) else ""
        return f"{shown(value)} is not one of {listed}{close}"
    kinds = (
        [a for a in arguments if a is not type(None)] if origin in (Union, UnionType) else [hint]
    )
    expected = " or ".join(NAMES.get(get_origin(k) or k, "a table") for k in kinds)
    if type(value) in (int, float) and float in kinds and BIGGEST <= abs(value) != math.inf:
        expected += f" below {BIGGEST:g}"
    if origin is tuple and arguments[-1] is not Ellipsis:
        expected = f"a list of {len(arguments)}"
    return f"expected {expected}, got {shown(value)}"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def table_of(thing: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass by name."""
    return {f.name: getattr(thing, f.name) for f in fields(thing)}


def plain(value: Any) -> Any:
    """Returns a value as TOML has it: dataclasses become tables, tuples become lists, and keys with
    None are left out."""
    if is_dataclass(value):
        return plain(table_of(value))
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value
