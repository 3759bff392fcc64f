"""Diagnostics: names that are told apart, and what they are about."""

from __future__ import annotations

import ast
from pathlib import Path

import communis
from communis.core import diagnostics
from communis.core.diagnostics import Diagnostic

SOURCE = Path(communis.__file__).parent

DECLARED = [d for d in vars(diagnostics).values() if isinstance(d, Diagnostic)]


def test_no_name_begins_with_another_that_speaks_of_something() -> None:
    """A reader that takes all lines of one would take those of the other."""
    assert DECLARED
    for one in DECLARED:
        for other in DECLARED:
            assert one is other or not (
                other.name.endswith("/") and one.name.startswith(other.name)
            )


def test_a_name_in_the_log() -> None:
    assert diagnostics.TRAINED.of("fusion.shared") == "trained/fusion.shared"
    assert diagnostics.WEIGHT.of(3, 11) == "weight/3-11"


def test_who_writes_or_reads_a_name_takes_it_from_its_declaration() -> None:
    """For names with a room of their own ("privacy/mu"); others are words like any."""
    rooms = {name.partition("/")[0] + "/" for name in (d.name for d in DECLARED) if "/" in name}
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        if path.name == "diagnostics.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and str(node.value).startswith(tuple(rooms)):
                found.append((path.name, node.lineno, node.value))
    assert not found
