"""A run folder of a stranger puts nothing live into a report."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from communis import CommunisError
from communis.compare import collect
from communis.report.page import render
from communis.terminal import out, results
from tests.faults.test_damage import run

POISON = "<script>alert(1)</script><img src=x onerror=alert(1)>"


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where texts stand in a JSON value, and the keys of its tables."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key, None)  # the key itself
            yield from places(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value[:2]):
            yield from places(inner, (*path, i))
    elif isinstance(value, str):
        yield path


def poisoned(value: Any, path: tuple[Any, ...]) -> Any:
    """The value with POISON in that place."""
    if path == ():
        return POISON
    first, *rest = path
    if rest == [None] and isinstance(value, dict):
        return {POISON if key == first else key: inner for key, inner in value.items()}
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[first] = poisoned(copy[first], tuple(rest))
    return copy


@pytest.mark.parametrize("privacy", [False, True])
def test_every_text_of_a_folder_is_shown_as_text(privacy: bool, tmp_path: Path) -> None:
    run(tmp_path / "a", rounds=1, privacy=privacy, method="fedavg")
    shown = 0
    for name in ("fleet.json", "privacy.json", "records.jsonl"):
        path = tmp_path / "a" / name
        whole = path.read_text("utf-8")
        for place in list(places(json.loads(whole))):
            path.write_text(json.dumps(poisoned(json.loads(whole), place)) + "\n", "utf-8")
            try:
                found = collect([tmp_path])
                text = render(found, "accuracy", "t")
                with out.capture():
                    out.print(results(found, "accuracy"))
            except CommunisError:
                continue
            assert "<script>alert" not in text, (name, place)
            assert "<img src=x" not in text, (name, place)
            shown += 1
        path.write_text(whole, "utf-8")
    assert shown > 20


@pytest.mark.parametrize("key", ['name = "{}"', 'variant = "{}"', 'metric = "{}"'])
def test_names_of_a_configuration_are_shown_as_text(key: str, tmp_path: Path) -> None:
    run(tmp_path / "a", rounds=1)
    path = tmp_path / "a" / "config.toml"
    path.write_text(key.format(POISON) + "\n" + path.read_text())
    text = render(collect([tmp_path]), "accuracy", POISON)
    assert "<script>alert" not in text
    assert "<img src=x" not in text
