"""Diagnostics: names that are told apart, and what they are about."""

from __future__ import annotations

from communis.core import diagnostics
from communis.core.diagnostics import Diagnostic

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
