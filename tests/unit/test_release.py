"""What is installed is pinned, and its licences are listed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def required(extras: tuple[str, ...]) -> set[str]:
    """The packages that pyproject.toml names for the core and these extras, but for torch."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    texts = list(project["dependencies"])
    for extra in extras:
        texts += project["optional-dependencies"][extra]
    return {re.split(r"[<>=\[; ]", text)[0].lower() for text in texts} - {"torch"}


@pytest.fixture
def pins() -> dict[str, str]:
    """Of every package in the lock file, the lines that pin it."""
    text = (ROOT / ".ci" / "requirements.txt").read_text("utf-8")
    blocks = re.split(r"^(?=[a-z0-9])", text, flags=re.M)
    return {block.partition("==")[0]: block for block in blocks if "==" in block}


def test_everything_that_ci_installs_is_pinned_with_hashes(pins: dict[str, str]) -> None:
    assert required(("edf", "moment", "privacy", "dev")) <= pins.keys()
    without = [name for name, block in pins.items() if "--hash=sha256:" not in block]
    assert without == []


def test_the_pins_are_those_of_the_constraints(pins: dict[str, str]) -> None:
    for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines():
        name, _, version = line.partition("==")
        if version and name in pins:
            assert pins[name].startswith(f"{name}=={version} "), name


def test_the_licence_of_everything_that_users_install_is_listed() -> None:
    text = (ROOT / "LICENCES.md").read_text("utf-8")
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    listed = {row[0].removeprefix("| ") for row in rows}
    assert required(("edf", "moment", "privacy")) <= listed
    assert not [row for row in rows if "not stated" in row[2]]


def test_nobody_is_told_to_install_communis_from_an_index_that_does_not_have_it() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    code = sorted((ROOT / "src").rglob("*.py"))
    told = re.compile(r"pip install [^\n`]*\bcommunis\b")
    assert told.search("pip install 'communis[edf]'")
    assert [path for path in (*pages, *code) if told.search(path.read_text("utf-8"))] == []
