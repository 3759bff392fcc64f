"""Optional parts say how to get them."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from communis import CommunisError
from communis.core.extras import EXTRAS, require


@pytest.mark.parametrize("name", EXTRAS)
def test_a_missing_extra_names_its_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRAS, name, replace(EXTRAS[name], module="not_there_at_all"))
    with pytest.raises(CommunisError, match=rf"pip install 'communis\[{name}\]'"):
        require(name)


def test_an_installed_extra_is_its_module() -> None:
    assert require("dev").__name__ == "pytest"


def test_extras_are_those_of_the_package() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"])
