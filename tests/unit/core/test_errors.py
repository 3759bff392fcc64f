"""Foreign text is quoted so that it can be printed and read."""

from __future__ import annotations

from communis.core.errors import readable, visible

STEERING = "a\x1b[31m\x9b\r\u202e\u2028\ufeff\ud800"
WRITTEN = r"a\x1b[31m\x9b\r\u202e\u2028\ufeff\ud800"


def test_what_steers_a_terminal_is_written_out() -> None:
    assert visible(f"{STEERING}\tb\nc") == f"{WRITTEN}\tb\nc"


def test_a_reason_is_one_short_line() -> None:
    assert readable(f"{STEERING}\tb\nc") == rf"{WRITTEN}\tb\nc"
    assert readable("x" * 301) == "x" * 300 + " ..."


def test_words_of_other_languages_stay() -> None:
    assert visible("Füße, 歩く, ± ε") == "Füße, 歩く, ± ε"


def test_quoting_twice_changes_nothing() -> None:
    assert readable(readable(STEERING)) == readable(STEERING)
