"""docs/methods: a page per method whose settings, defaults and command are those of the code."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from communis import Recipe
from communis.core.plugins import find, names
from communis.methods.fedavg import FedAvg
from communis.run.config import load

PAGES = Path(__file__).parents[3] / "docs" / "methods"
COMMON = {f.name: f.default for f in fields(FedAvg)}
LOCAL = {f.name: f.default for f in fields(Recipe)}


def table(text: str, heading: str) -> dict[str, object]:
    """name -> default of the settings table under a heading."""
    section = text.split(f"## {heading}\n")[1].split("\n## ", maxsplit=1)[0]
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| `([^`]*)` \|", section, re.MULTILINE)
    return {name: value(default) for name, default in rows}


def value(text: str) -> object:
    """A default as TOML writes it, as Python has it."""
    if text in ("true", "false"):
        return text == "true"
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text  # a word
    return tuple(found) if isinstance(found, list) else found


@pytest.mark.parametrize("name", names("methods"))
def test_page(name: str) -> None:
    """Own settings with their defaults; a test file. That the table is the generated one is tested
    with the other references."""
    text = (PAGES / f"{name}.md").read_text("utf-8")
    found = {f.name: f.default for f in fields(find("methods", name))}
    common = LOCAL if name == "fedavg" else COMMON
    own = {key: value for key, value in found.items() if common.get(key, ...) != value}
    assert own.items() <= table(text, "Settings").items()
    assert f"tests/unit/methods/test_{name}.py" in text
    assert (Path(__file__).parent / f"test_{name}.py").exists()
    assert f"[{name}]({name}.md)" in (PAGES / "README.md").read_text("utf-8")


@pytest.mark.parametrize("name", names("methods"))
def test_command(name: str) -> None:
    """The command of a page is a valid configuration of that method."""
    text = (PAGES / f"{name}.md").read_text("utf-8")
    (line,) = re.findall(r"^communis run .*$", text, re.MULTILINE)
    words = shlex.split(line)
    settings = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    cell = words[words.index("--cell") + 1] if "--cell" in words else ""
    config = load(words[2], settings, cell)
    assert type(config.make_method()) is find("methods", name)


def test_settings_of_local_training() -> None:
    """The index lists those that every method shares."""
    text = (PAGES / "README.md").read_text("utf-8")
    assert table(text, "Settings of local training") == {f.name: f.default for f in fields(Recipe)}
